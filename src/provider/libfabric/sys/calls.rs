//! The functions of an endpoint, and what they take.

use super::abi::{Fid, Unused};
use super::layout::{Fact, layout};
use core::ffi::{c_int, c_void};

layout! { CALL_FACTS:
    /// An endpoint.
    struct FidEp = "fid_ep" {
        /// As every object.
        fid: Fid = "fid",
        /// Its options.
        ops: *const EpOps = "ops",
        /// Its addresses.
        cm: *const CmOps = "cm",
        /// Its messages.
        msg: *const MsgOps = "msg",
        /// Its writes and reads.
        rma: *const RmaOps = "rma",
        /// Its tagged messages.
        tagged: *const c_void = "tagged",
        /// Its atomics.
        atomic: *const AtomicOps = "atomic",
    }
    /// Functions of options.
    struct EpOps = "fi_ops_ep" {
        /// Of this table.
        size: usize = "size",
        /// Calls an op off.
        cancel: Unused = "cancel",
        /// Says what an option is.
        getopt: Unused = "getopt",
        /// Sets one: level, name, value and its length.
        setopt: Option<unsafe extern "C" fn(
            *mut Fid, c_int, c_int, *const c_void, usize
        ) -> c_int> = "setopt",
    }
    /// Functions of addresses.
    struct CmOps = "fi_ops_cm" {
        /// Of this table.
        size: usize = "size",
        /// Chooses our address.
        setname: Unused = "setname",
        /// Says our address.
        getname: Option<unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int>
            = "getname",
    }
    /// Functions of messages.
    struct MsgOps = "fi_ops_msg" [1] {
        /// Of this table.
        size: usize = "size",
        /// Posts a receive.
        recv: unsafe extern "C" fn(
            *mut FidEp, *mut c_void, usize, *mut c_void, u64, *mut c_void
        ) -> isize = "recv",
        /// Of several parts.
        recvv: Unused = "recvv",
        /// With flags.
        recvmsg: Unused = "recvmsg",
        /// Sends.
        send: unsafe extern "C" fn(
            *mut FidEp, *const c_void, usize, *mut c_void, u64, *mut c_void
        ) -> isize = "send",
        /// Of several parts.
        sendv: Unused = "sendv",
        /// With flags.
        sendmsg: Unused = "sendmsg",
        /// Sends, and has copied when it returns.
        inject: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64) -> isize = "inject",
        /// With a word.
        senddata: Unused = "senddata",
        /// With a word.
        injectdata: Unused = "injectdata",
    }
    /// Functions of writes and reads.
    struct RmaOps = "fi_ops_rma" [1] {
        /// Of this table.
        size: usize = "size",
        /// Reads.
        read: Unused = "read",
        /// Of several parts.
        readv: Unused = "readv",
        /// With flags.
        readmsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize = "readmsg",
        /// Writes.
        write: Unused = "write",
        /// Of several parts.
        writev: Unused = "writev",
        /// With flags.
        writemsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize = "writemsg",
        /// Copied.
        inject: Unused = "inject",
        /// With a word.
        writedata: Unused = "writedata",
        /// Copied, with a word.
        injectdata: Unused = "injectdata",
    }
    /// Functions of atomics.
    struct AtomicOps = "fi_ops_atomic" {
        /// Of this table.
        size: usize = "size",
        /// Without an answer.
        write: Unused = "write",
        /// Of several parts.
        writev: Unused = "writev",
        /// With flags.
        writemsg: Option<unsafe extern "C" fn(*mut FidEp, *const MsgAtomic, u64) -> isize>
            = "writemsg",
        /// Copied.
        inject: Unused = "inject",
        /// With an answer.
        readwrite: Unused = "readwrite",
        /// Of several parts.
        readwritev: Unused = "readwritev",
        /// With flags.
        readwritemsg: Unused = "readwritemsg",
        /// Compares first.
        compwrite: Unused = "compwrite",
        /// Of several parts.
        compwritev: Unused = "compwritev",
        /// With flags.
        compwritemsg: Unused = "compwritemsg",
        /// Whether there is such a one, and how many at a time.
        writevalid: Option<unsafe extern "C" fn(*mut FidEp, c_int, c_int, *mut usize) -> c_int>
            = "writevalid",
    }
    /// The peer's memory.
    struct RmaIov = "fi_rma_iov" [1] {
        /// First byte, or its place in the region.
        addr: u64 = "addr",
        /// In bytes.
        len: usize = "len",
        /// What the peer calls the region.
        key: u64 = "key",
    }
    /// A write or a read.
    struct MsgRma = "fi_msg_rma" [1] {
        /// Our memory.
        msg_iov: *const libc::iovec = "msg_iov",
        /// The region that each part lies in.
        desc: *mut *mut c_void = "desc",
        /// Parts of ours.
        iov_count: usize = "iov_count",
        /// The peer.
        addr: u64 = "addr",
        /// The peer's memory.
        rma_iov: *const RmaIov = "rma_iov",
        /// Parts of the peer's.
        rma_iov_count: usize = "rma_iov_count",
        /// Comes back in the completion.
        context: *mut c_void = "context",
        /// Goes to the peer.
        data: u64 = "data",
    }
    /// Our operand.
    struct Ioc = "fi_ioc" [1] {
        /// First.
        addr: *mut c_void = "addr",
        /// How many.
        count: usize = "count",
    }
    /// The peer's words.
    struct RmaIoc = "fi_rma_ioc" [1] {
        /// First byte, or its place in the region.
        addr: u64 = "addr",
        /// How many.
        count: usize = "count",
        /// What the peer calls the region.
        key: u64 = "key",
    }
    /// An atomic.
    struct MsgAtomic = "fi_msg_atomic" [1] {
        /// Our operand.
        msg_iov: *const Ioc = "msg_iov",
        /// The region that it lies in.
        desc: *mut *mut c_void = "desc",
        /// Parts of ours.
        iov_count: usize = "iov_count",
        /// The peer.
        addr: u64 = "addr",
        /// The peer's words.
        rma_iov: *const RmaIoc = "rma_iov",
        /// Parts of the peer's.
        rma_iov_count: usize = "rma_iov_count",
        /// Of `UINT64`.
        datatype: c_int = "datatype",
        /// Of `SUM`.
        op: c_int = "op",
        /// Comes back in the completion.
        context: *mut c_void = "context",
        /// Goes to the peer.
        data: u64 = "data",
    }
}

/// What a C compiler can say of them.
pub const FACTS: &[Fact] = CALL_FACTS;
