//! libibverbs, loaded at run time.

use super::abi::{
    AsyncEvent, CompChannel, Context, Cq, DeviceAttr, DeviceEntry, Ece, Gid, GidEntry, Mr, Pd,
    PortAttr, Qp, QpAttr, QpInitAttr,
};
use super::extended::QpEx;
use crate::base::descriptor::StandardHeld;
use crate::base::text::Text;
use crate::base::words::said;
use crate::memory::loader::{function, reason, words};
use core::ffi::{CStr, c_int, c_uint, c_void};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The file, by the name that has stood since 2007.
const FILE: &CStr = c"libibverbs.so.1";

/// What the loader says, or its beginning.
pub type Reason = Text<120>;

said! {
    /// Why the library cannot be used.
    #[derive(Copy, Clone, Eq, PartialEq, Debug)]
    pub enum LoadError {
        /// It, or a library that it needs, is not installed, or cannot be used; what the loader
        /// says.
        Missing(why: Reason) =>
            "no RDMA: libibverbs.so.1 cannot be loaded ({why}); the package libibverbs1 \
             (rdma-core) has it",
        /// It has no such function: it is older than libibverbs 1.1.
        Old(name: &'static str) => "no RDMA: libibverbs.so.1 is too old, it has no {name}",
    }
}

impl Library {
    /// The file that it was loaded from, links followed: its name ends with rdma-core's version.
    pub fn file(&self) -> Option<PathBuf> {
        // SAFETY: pointers and numbers, for which zero is a value.
        let mut found: libc::Dl_info = unsafe { core::mem::zeroed() };
        let function = self.open_device as *const c_void;
        // SAFETY: an address of the library's, and room for what is known of it.
        if unsafe { libc::dladdr(function, &raw mut found) } == 0 || found.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the name of a library that is never unloaded, which ends with a zero.
        let name = unsafe { CStr::from_ptr(found.dli_fname) };
        PathBuf::from(OsStr::from_bytes(name.to_bytes())).canonicalize().ok()
    }

    /// The newest rdma-core of which it has a function that we know.
    pub fn age(&self) -> &'static str {
        match self {
            Library { query_port_speed: Some(_), .. } => "rdma-core 62 or newer",
            Library { reg_dmabuf_mr: Some(_), .. } => "rdma-core 34 to 61",
            Library { query_gid_ex: Some(_), .. } => "rdma-core 33",
            Library { query_ece: Some(_), .. } => "rdma-core 28 to 32",
            Library { .. } => "older than rdma-core 28",
        }
    }
}

/// Declares the table of functions and how it is filled.
macro_rules! functions {
    (
        required { $($(#[$doc:meta])* $field:ident: $ty:ty = $name:literal $version:literal,)* }
        optional {
            $($(#[$odoc:meta])* $ofield:ident: $oty:ty = $oname:literal $oversion:literal,)*
        }
    ) => {
        /// The functions. They stay good for ever: the library is never unloaded.
        #[derive(Copy, Clone, Debug)]
        pub struct Library {
            $($(#[$doc])* pub $field: $ty,)*
            $($(#[$odoc])* pub $ofield: Option<$oty>,)*
        }

        impl Library {
            /// Loads it, or finds it loaded.
            pub fn load() -> Result<Library, LoadError> {
                let _standard = StandardHeld::new();
                let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
                // SAFETY: a name that ends with a zero; the library's initialisers are trusted, as
                // those of a library that is linked.
                let handle = unsafe { libc::dlopen(FILE.as_ptr(), flags) };
                if handle.is_null() {
                    return Err(LoadError::Missing(reason()));
                }
                Ok(Library {
                    $($field: {
                        let symbol = find(handle, $name, $version)
                            .ok_or(LoadError::Old(words($name)))?;
                        // SAFETY: a function of that version of the library has this type.
                        unsafe { function::<$ty>(symbol) }
                    },)*
                    $($ofield: find(handle, $oname, $oversion).map(|symbol| {
                        // SAFETY: a function of that version of the library has this type.
                        unsafe { function::<$oty>(symbol) }
                    }),)*
                })
            }
        }
    };
}

/// A function, of any version where none is named.
fn find(handle: *mut c_void, name: &CStr, version: &CStr) -> Option<*mut c_void> {
    let symbol = match version.is_empty() {
        // SAFETY: an open library, and a name that ends with a zero.
        true => unsafe { libc::dlsym(handle, name.as_ptr()) },
        // SAFETY: as above.
        false => unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) },
    };
    (!symbol.is_null()).then_some(symbol)
}

functions! {
    required {
        /// An array of the devices, which ends with null.
        get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut DeviceEntry
            = c"ibv_get_device_list" c"IBVERBS_1.1",
        /// Gives the array back; open devices stay.
        free_device_list: unsafe extern "C" fn(*mut *mut DeviceEntry)
            = c"ibv_free_device_list" c"IBVERBS_1.1",
        /// Opens a device.
        open_device: unsafe extern "C" fn(*mut DeviceEntry) -> *mut Context
            = c"ibv_open_device" c"IBVERBS_1.1",
        /// Closes it.
        close_device: unsafe extern "C" fn(*mut Context) -> c_int
            = c"ibv_close_device" c"IBVERBS_1.1",
        /// Takes an event. It blocks unless the descriptor does not.
        get_async_event: unsafe extern "C" fn(*mut Context, *mut AsyncEvent) -> c_int
            = c"ibv_get_async_event" c"IBVERBS_1.1",
        /// Says that an event has been seen; closing what it is about waits for that.
        ack_async_event: unsafe extern "C" fn(*mut AsyncEvent)
            = c"ibv_ack_async_event" c"IBVERBS_1.1",
        /// Reads what a device is.
        query_device: unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int
            = c"ibv_query_device" c"IBVERBS_1.1",
        /// Reads what a port is; fills the part that libibverbs 1.1 had.
        query_port: unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int
            = c"ibv_query_port" c"IBVERBS_1.1",
        /// Reads a GID.
        query_gid: unsafe extern "C" fn(*mut Context, u8, c_int, *mut Gid) -> c_int
            = c"ibv_query_gid" c"IBVERBS_1.1",
        /// Reads a partition's key.
        query_pkey: unsafe extern "C" fn(*mut Context, u8, c_int, *mut u16) -> c_int
            = c"ibv_query_pkey" c"IBVERBS_1.1",
        /// Makes a protection domain.
        alloc_pd: unsafe extern "C" fn(*mut Context) -> *mut Pd
            = c"ibv_alloc_pd" c"IBVERBS_1.1",
        /// Gives it back.
        dealloc_pd: unsafe extern "C" fn(*mut Pd) -> c_int
            = c"ibv_dealloc_pd" c"IBVERBS_1.1",
        /// Registers memory.
        reg_mr: unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr
            = c"ibv_reg_mr" c"IBVERBS_1.1",
        /// Gives a registration back.
        dereg_mr: unsafe extern "C" fn(*mut Mr) -> c_int
            = c"ibv_dereg_mr" c"IBVERBS_1.1",
        /// Makes a channel of completions' events.
        create_comp_channel: unsafe extern "C" fn(*mut Context) -> *mut CompChannel
            = c"ibv_create_comp_channel" c"IBVERBS_1.0",
        /// Gives it back.
        destroy_comp_channel: unsafe extern "C" fn(*mut CompChannel) -> c_int
            = c"ibv_destroy_comp_channel" c"IBVERBS_1.0",
        /// Takes an event: whose, and the user's word for it. It blocks unless the descriptor does
        /// not.
        get_cq_event: unsafe extern "C" fn(
            *mut CompChannel, *mut *mut Cq, *mut *mut c_void
        ) -> c_int
            = c"ibv_get_cq_event" c"IBVERBS_1.1",
        /// Says that so many events have been seen; closing the queue waits for that.
        ack_cq_events: unsafe extern "C" fn(*mut Cq, c_uint)
            = c"ibv_ack_cq_events" c"IBVERBS_1.1",
        /// Makes a completion queue.
        create_cq: unsafe extern "C" fn(
            *mut Context, c_int, *mut c_void, *mut CompChannel, c_int
        ) -> *mut Cq
            = c"ibv_create_cq" c"IBVERBS_1.1",
        /// Gives it back.
        destroy_cq: unsafe extern "C" fn(*mut Cq) -> c_int
            = c"ibv_destroy_cq" c"IBVERBS_1.1",
        /// Makes a queue pair, and says in the attributes what it has got.
        create_qp: unsafe extern "C" fn(*mut Pd, *mut QpInitAttr) -> *mut Qp
            = c"ibv_create_qp" c"IBVERBS_1.1",
        /// Changes what the mask says.
        modify_qp: unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int) -> c_int
            = c"ibv_modify_qp" c"IBVERBS_1.1",
        /// Gives it back. The device touches nothing on its behalf afterwards.
        destroy_qp: unsafe extern "C" fn(*mut Qp) -> c_int
            = c"ibv_destroy_qp" c"IBVERBS_1.1",
    }
    optional {
        /// Has children of a fork get no copies of registered pages, which only kernels before 5.12
        /// need; before anything is registered. Further calls do nothing.
        fork_init: unsafe extern "C" fn() -> c_int
            = c"ibv_fork_init" c"IBVERBS_1.1",
        /// Registers memory at another address, with access flags that old kernels ignore.
        reg_mr_iova2: unsafe extern "C" fn(*mut Pd, *mut c_void, usize, u64, u32) -> *mut Mr
            = c"ibv_reg_mr_iova2" c"IBVERBS_1.8",
        /// The functions by which a queue pair posts; null: it has none of its own.
        qp_to_qp_ex: unsafe extern "C" fn(*mut Qp) -> *mut QpEx
            = c"ibv_qp_to_qp_ex" c"IBVERBS_1.6",
        /// Says which extensions of its vendor a queue pair has.
        query_ece: unsafe extern "C" fn(*mut Qp, *mut Ece) -> c_int
            = c"ibv_query_ece" c"IBVERBS_1.10",
        /// Says which of them it is to use.
        set_ece: unsafe extern "C" fn(*mut Qp, *mut Ece) -> c_int
            = c"ibv_set_ece" c"IBVERBS_1.10",
        /// Reads an entry of a table of GIDs: port, index, room, no flags, the room's length.
        query_gid_ex: unsafe extern "C" fn(
            *mut Context, u32, u32, *mut GidEntry, u32, usize
        ) -> c_int
            = c"_ibv_query_gid_ex" c"IBVERBS_1.11",
        /// Reads how fast a port is now, in units of 100 Mbit/s; of any version.
        query_port_speed: unsafe extern "C" fn(*mut Context, u32, *mut u64) -> c_int
            = c"ibv_query_port_speed" c"",
        /// Registers a part of a dma-buf: offset, length, address for peers, descriptor, access.
        reg_dmabuf_mr: unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr
            = c"ibv_reg_dmabuf_mr" c"IBVERBS_1.12",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn missing_library_is_one_sentence() {
        let text = LoadError::Missing(Reason::beginning(b"libnl.so: no such file")).to_string();
        assert!(text.contains("libibverbs.so.1 cannot be loaded (libnl.so: no"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        let text = LoadError::Old("ibv_open_device").to_string();
        assert!(text.contains("too old, it has no ibv_open_device"), "{text}");
    }
}
