//! The functions of an endpoint, and what they take.

use super::abi::{Fid, Unused};
use super::layout::{Fact, layout};
use core::ffi::{c_int, c_void};

layout! { CALL_FACTS:
    /// An endpoint.
    struct FidEp = "fid_ep" {
        fid: Fid = "fid",
        ops: *const EpOps = "ops",
        cm: *const CmOps = "cm",
        msg: *const MsgOps = "msg",
        rma: *const RmaOps = "rma",
        tagged: *const c_void = "tagged",
        atomic: *const AtomicOps = "atomic",
    }
    /// Functions of options.
    struct EpOps = "fi_ops_ep" {
        size: usize = "size",
        cancel: Unused = "cancel",
        getopt: Unused = "getopt",
        /// Sets one: level, name, value and its length.
        setopt: Option<unsafe extern "C" fn(
            *mut Fid, c_int, c_int, *const c_void, usize
        ) -> c_int> = "setopt",
    }
    /// Functions of addresses.
    struct CmOps = "fi_ops_cm" {
        size: usize = "size",
        setname: Unused = "setname",
        getname: Option<unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int>
            = "getname",
    }
    /// Functions of messages.
    struct MsgOps = "fi_ops_msg" [1] {
        size: usize = "size",
        recv: unsafe extern "C" fn(
            *mut FidEp, *mut c_void, usize, *mut c_void, u64, *mut c_void
        ) -> isize = "recv",
        recvv: Unused = "recvv",
        recvmsg: Unused = "recvmsg",
        send: unsafe extern "C" fn(
            *mut FidEp, *const c_void, usize, *mut c_void, u64, *mut c_void
        ) -> isize = "send",
        sendv: Unused = "sendv",
        sendmsg: Unused = "sendmsg",
        inject: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64) -> isize = "inject",
        senddata: Unused = "senddata",
        injectdata: Unused = "injectdata",
    }
    /// Functions of writes and reads.
    struct RmaOps = "fi_ops_rma" [1] {
        size: usize = "size",
        read: Unused = "read",
        readv: Unused = "readv",
        readmsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize = "readmsg",
        write: Unused = "write",
        writev: Unused = "writev",
        writemsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize = "writemsg",
        inject: Unused = "inject",
        writedata: Unused = "writedata",
        injectdata: Unused = "injectdata",
    }
    /// Functions of atomics.
    struct AtomicOps = "fi_ops_atomic" {
        size: usize = "size",
        write: Unused = "write",
        writev: Unused = "writev",
        writemsg: Option<unsafe extern "C" fn(*mut FidEp, *const MsgAtomic, u64) -> isize>
            = "writemsg",
        inject: Unused = "inject",
        readwrite: Unused = "readwrite",
        readwritev: Unused = "readwritev",
        readwritemsg: Unused = "readwritemsg",
        compwrite: Unused = "compwrite",
        compwritev: Unused = "compwritev",
        compwritemsg: Unused = "compwritemsg",
        writevalid: Option<unsafe extern "C" fn(*mut FidEp, c_int, c_int, *mut usize) -> c_int>
            = "writevalid",
    }
    /// The peer's memory.
    struct RmaIov = "fi_rma_iov" [1] {
        addr: u64 = "addr",
        /// In bytes.
        len: usize = "len",
        key: u64 = "key",
    }
    /// A write or a read.
    struct MsgRma = "fi_msg_rma" [1] {
        msg_iov: *const libc::iovec = "msg_iov",
        desc: *mut *mut c_void = "desc",
        iov_count: usize = "iov_count",
        addr: u64 = "addr",
        rma_iov: *const RmaIov = "rma_iov",
        rma_iov_count: usize = "rma_iov_count",
        context: *mut c_void = "context",
        data: u64 = "data",
    }
    /// Our operand.
    struct Ioc = "fi_ioc" [1] {
        addr: *mut c_void = "addr",
        count: usize = "count",
    }
    /// The peer's words.
    struct RmaIoc = "fi_rma_ioc" [1] {
        addr: u64 = "addr",
        count: usize = "count",
        key: u64 = "key",
    }
    /// An atomic.
    struct MsgAtomic = "fi_msg_atomic" [1] {
        msg_iov: *const Ioc = "msg_iov",
        desc: *mut *mut c_void = "desc",
        iov_count: usize = "iov_count",
        addr: u64 = "addr",
        rma_iov: *const RmaIoc = "rma_iov",
        rma_iov_count: usize = "rma_iov_count",
        /// Of `UINT64`.
        datatype: c_int = "datatype",
        /// Of `SUM`.
        op: c_int = "op",
        context: *mut c_void = "context",
        data: u64 = "data",
    }
}

/// What a C compiler can say of them.
pub const FACTS: &[Fact] = CALL_FACTS;
