//! The helper thread: hands out what peers need to map our memory of GPUs, and maps theirs.
//!
//! It alone waits for the driver. It never waits for a peer: each socket is read when it has
//! something, so that two processes may ask each other at the same time.

use super::record::{BYTES, How, Part, Record};
use super::{Exports, GpuError, socket_of};
use crate::base::text::Text;
use crate::connect::{Socket, Trust};
use crate::fabric::{Domain, MemoryKind, Region};
use crate::host::log::news;
use crate::memory::cuda::{CudaError, Gpu, Handle, Import, Library, Place, Segment};
use crate::memory::{Errno, locked};
use crate::provider::copy_engine::imports::{Mapped, Wanted};
use crate::provider::copy_engine::{Cells, Exporter, GPUS_MAX, LaneError, Lanes, Shared as Gpus};
use crate::provider::shm::ShmDomain;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::vec::Vec;

/// A number that tells this process from all others.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| {
        let random = crate::connect::random().unwrap_or_default();
        random as u64 ^ u64::from(std::process::id())
    })
}

/// Opens a GPU for the copy engine, if it is not open yet.
pub(super) fn open_lanes(
    gpus: &Gpus,
    number: usize,
    gpu: &Arc<Gpu>,
    domain: &ShmDomain<'static>,
) -> Result<(), GpuError> {
    let mut cells = locked(&gpus.cells); // two threads may come at once
    if gpus.gpus[number].get().is_some() {
        return Ok(());
    }
    if cells.is_none() {
        let system = |errno| GpuError::Lanes(LaneError::System(errno));
        let mut made = Cells::create(GPUS_MAX).map_err(system)?;
        let (address, length) = made.span();
        let region = Region { address, length, kind: MemoryKind::Host };
        // SAFETY: it stays mapped until the rails are gone.
        let key = unsafe { domain.register(region) };
        made.key_set(key.map_err(|_| system(Errno(libc::ENOSPC)))?);
        *cells = Some(made);
    }
    if let Some(cells) = &*cells {
        // SAFETY: they go behind all lanes (order of `Shared`'s fields), and this number has none.
        let own = Arc::new(gpu.own()?);
        // SAFETY: as above.
        let lanes = unsafe { Lanes::new(own, number, cells) };
        let lanes = Mutex::new(lanes.map_err(GpuError::Lanes)?);
        let is_first = gpus.gpus[number].set(lanes).is_ok();
        debug_assert!(is_first, "looked for under the lock");
    }
    Ok(())
}

/// A peer that asks us.
struct Inbound {
    socket: Socket,
    /// Records that found no room.
    unsent: VecDeque<(Record, Option<OwnedFd>)>,
}

/// A peer that we ask.
struct Outbound {
    exporter: Exporter,
    socket: Socket,
}

/// What has come of a region that is being mapped.
struct Pending {
    wanted: Wanted,
    parts: Vec<(Part, Option<OwnedFd>)>,
}

/// The thread's state.
pub(super) struct Helper {
    gpus: Arc<Gpus>,
    exports: Arc<Exports>,
    listener: Socket,
    exporter: Exporter,
    trust: Trust,
    domain: ShmDomain<'static>,
    inbound: Vec<Inbound>,
    outbound: Vec<Outbound>,
    pending: BTreeMap<u32, Pending>,
    /// What keeps entries mapped.
    mapped: BTreeMap<u32, Import>,
}

impl Helper {
    pub fn new(
        gpus: Arc<Gpus>,
        exports: Arc<Exports>,
        listener: Socket,
        exporter: Exporter,
        trust: Trust,
        domain: ShmDomain<'static>,
    ) -> Helper {
        Helper {
            gpus,
            exports,
            listener,
            exporter,
            trust,
            domain,
            inbound: Vec::new(),
            outbound: Vec::new(),
            pending: BTreeMap::new(),
            mapped: BTreeMap::new(),
        }
    }

    /// Works until it is told to stop.
    pub fn run(&mut self) {
        while !self.exports.stop.load(Ordering::Acquire) {
            self.wait();
            if let Some(wake) = self.gpus.imports.wake() {
                wake.drain();
            }
            self.tell_gone();
            self.gpus.overdue().for_each(news::gpu_copies_overdue);
            self.gpus.refused().inspect(|code| news::gpu_copy_refused(*code));
            for (entry, wanted) in self.gpus.imports.wanted() {
                self.ask(entry, wanted);
            }
            while let Ok(socket) = self.listener.accept() {
                let user = socket.credentials().map(|peer| peer.uid);
                if user.is_ok_and(|user| self.trust.admits(user)) {
                    self.inbound.push(Inbound { socket, unsent: VecDeque::new() });
                }
            }
            self.serve();
            self.hear();
            for entry in self.gpus.imports.sweep() {
                self.mapped.remove(&entry);
            }
        }
        if self.exports.keep.load(Ordering::Acquire) {
            core::mem::forget(core::mem::take(&mut self.mapped));
        }
    }

    /// Until something has come.
    fn wait(&self) {
        let readable = |fd: i32, events| libc::pollfd { fd, events, revents: 0 };
        let mut fds = Vec::from([readable(self.listener.as_fd().as_raw_fd(), libc::POLLIN)]);
        let wake = self.gpus.imports.wake().map(|wake| wake.fd().as_raw_fd());
        fds.extend(wake.map(|fd| readable(fd, libc::POLLIN)));
        for peer in &self.inbound {
            let more = if peer.unsent.is_empty() { 0 } else { libc::POLLOUT };
            fds.push(readable(peer.socket.as_fd().as_raw_fd(), libc::POLLIN | more));
        }
        for peer in &self.outbound {
            fds.push(readable(peer.socket.as_fd().as_raw_fd(), libc::POLLIN));
        }
        // SAFETY: so many entries, valid for the length of the call.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) };
    }

    /// Tells all that have asked us which regions are no more.
    fn tell_gone(&mut self) {
        let gone: Vec<u64> = locked(&self.exports.gone).drain(..).collect();
        for key in gone {
            for peer in &mut self.inbound {
                peer.unsent.push_back((Record::Gone { key }, None));
            }
            self.gpus.imports.forget(self.exporter, Some(key)); // this process itself
        }
    }

    /// Answers peers.
    fn serve(&mut self) {
        let (secret, exports) = (self.exporter.secret, &self.exports);
        self.inbound.retain_mut(|peer| {
            let mut bytes = [0; BYTES];
            loop {
                match peer.socket.receive(&mut bytes) {
                    Ok(got) if got.length == 0 => return false,
                    Ok(got) => match Record::decode(&bytes[..got.length]) {
                        Some(Record::Ask { secret: said, entry, key }) if said == secret => {
                            answer(exports, entry, key, &mut peer.unsent);
                        }
                        _ => return false,
                    },
                    Err(error) if is_later(&error) => break,
                    Err(_) => return false,
                }
            }
            while let Some((record, descriptor)) = peer.unsent.front() {
                let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
                match peer.socket.send(&record.encode(), &descriptors) {
                    Ok(()) => peer.unsent.pop_front(),
                    Err(error) if is_later(&error) => break,
                    Err(_) => return false,
                };
            }
            true
        });
    }

    /// Asks the owner of a region for it.
    fn ask(&mut self, entry: u32, wanted: Wanted) {
        let asked = self.outbound_of(wanted.exporter).and_then(|at| {
            let secret = wanted.exporter.secret;
            let ask = Record::Ask { secret, entry, key: wanted.key };
            self.outbound[at].socket.send(&ask.encode(), &[])
        });
        match asked {
            Ok(()) => {
                self.pending.insert(entry, Pending { wanted, parts: Vec::new() });
            }
            Err(error) => {
                let code = error.raw_os_error().unwrap_or(libc::EIO);
                news::gpu_memory_unmapped(&error);
                self.gpus.imports.answer(entry, Err(-code));
            }
        }
    }

    /// The connection to an owner; dials, if there is none.
    fn outbound_of(&mut self, exporter: Exporter) -> std::io::Result<usize> {
        if let Some(at) = self.outbound.iter().position(|peer| peer.exporter == exporter) {
            return Ok(at);
        }
        let socket = Socket::connect(&socket_of(exporter))?;
        if !self.trust.admits(socket.credentials()?.uid) {
            return Err(std::io::Error::from_raw_os_error(libc::EACCES));
        }
        self.outbound.push(Outbound { exporter, socket });
        Ok(self.outbound.len() - 1)
    }

    /// Takes what owners answer, and maps what is complete.
    fn hear(&mut self) {
        let mut at = 0;
        while at < self.outbound.len() {
            let mut bytes = [0; BYTES];
            let exporter = self.outbound[at].exporter;
            let is_open = loop {
                match self.outbound[at].socket.receive(&mut bytes) {
                    Ok(mut got) if got.length != 0 => {
                        let descriptor = got.descriptors[0].take();
                        match Record::decode(&bytes[..got.length]) {
                            Some(Record::Part(part)) => self.part_came(part, descriptor),
                            Some(Record::None { entry }) => {
                                self.pending.remove(&entry);
                                self.gpus.imports.answer(entry, Err(-libc::ENOENT));
                            }
                            Some(Record::Gone { key }) => {
                                self.gpus.imports.forget(exporter, Some(key));
                            }
                            Some(Record::Ask { .. }) | None => break false,
                        }
                    }
                    Err(error) if is_later(&error) => break true,
                    Ok(_) | Err(_) => break false,
                }
            };
            match is_open {
                true => at += 1,
                false => {
                    // its process has ended, or closed its endpoint
                    self.outbound.swap_remove(at);
                    self.pending.retain(|_, pending| pending.wanted.exporter != exporter);
                    self.gpus.imports.forget(exporter, None);
                }
            }
        }
    }

    fn part_came(&mut self, part: Part, descriptor: Option<OwnedFd>) {
        let Some(pending) = self.pending.get_mut(&part.entry) else { return };
        pending.parts.push((part, descriptor));
        if pending.parts.len() < usize::from(part.count) {
            return;
        }
        let Some(pending) = self.pending.remove(&part.entry) else { return };
        let mapped = self.map(&pending);
        let result = mapped.map(|(mapped, import)| {
            if let Some(import) = import {
                self.mapped.insert(part.entry, import);
            }
            mapped
        });
        let result = result.inspect_err(|error| news::gpu_memory_unmapped(error));
        self.gpus.imports.answer(part.entry, result.map_err(|error| error.code as i32));
    }

    /// Maps a region that has come whole.
    fn map(&self, pending: &Pending) -> Result<(Mapped, Option<Import>), CudaError> {
        let refused = CudaError { call: "import", code: 1, name: Text::EMPTY };
        let (first, _) = pending.parts.first().ok_or(refused)?;
        let gpu = self.gpu(pending.wanted.gpu)?;
        let (theirs, length) = (first.region_start, first.region_bytes);
        let offset = theirs.checked_sub(first.start).ok_or(refused)?;
        // the driver calls memory of an IPC handle the importing GPU's, wherever it lies
        let is_within = first.gpu == u128::from_be_bytes(gpu.uuid()?);
        let import = match first.how {
            How::Ipc(_) if first.process == process() => {
                // the driver opens no handle in the process that has made it
                if !is_within {
                    reach(&self.gpus, &gpu, theirs)?;
                }
                return Ok((Mapped { theirs, ours: theirs, length, is_within }, None));
            }
            How::Ipc(handle) => Import::ipc(&gpu, &handle, first.bytes as usize)?,
            How::Descriptor => {
                let mut parts = Vec::with_capacity(pending.parts.len());
                for (part, descriptor) in &pending.parts {
                    let descriptor = descriptor.as_ref().ok_or(refused)?;
                    parts.push((descriptor.as_fd(), part.bytes as usize));
                }
                Import::of(&gpu, &parts)?
            }
        };
        if offset.checked_add(length).is_none_or(|end| end > import.bytes() as u64) {
            return Err(refused);
        }
        let ours = import.start() + offset;
        Ok((Mapped { theirs, ours, length, is_within }, Some(import)))
    }

    /// A GPU of ours, which the copy engine can use from now on.
    fn gpu(&self, number: u32) -> Result<Arc<Gpu>, CudaError> {
        let failed = |call| CudaError { call, code: 100, name: Text::EMPTY };
        let library = Library::load().map_err(|_| failed("libcuda.so.1"))?;
        let gpu = Arc::new(Gpu::at(library, number as i32)?);
        let number = Some(number as usize).filter(|number| *number < GPUS_MAX);
        let opened = number.map(|number| open_lanes(&self.gpus, number, &gpu, &self.domain));
        match opened {
            Some(Ok(())) => Ok(gpu),
            Some(Err(_)) | None => Err(failed("cuStreamCreateWithPriority")),
        }
    }
}

/// Lets a GPU reach memory of another GPU of this process: the streams of ours, and the program's.
fn reach(gpus: &Gpus, gpu: &Gpu, address: u64) -> Result<(), CudaError> {
    let Place::Device(number) = Place::of(gpu.library(), address)? else { return Ok(()) };
    let other = Gpu::at(gpu.library(), number)?;
    gpu.reach(&other)?;
    // outside the lock: the data thread waits for it
    let own = gpus.lanes(gpu.device() as u8).map(|lanes| Arc::clone(lanes.gpu()));
    own.map_or(Ok(()), |own| own.reach(&other))
}

/// What a peer needs of a region.
fn answer(
    exports: &Exports,
    entry: u32,
    key: u64,
    unsent: &mut VecDeque<(Record, Option<OwnedFd>)>,
) {
    let regions = locked(&exports.regions);
    let Some(export) = regions.get(&key) else {
        return unsent.push_back((Record::None { entry }, None));
    };
    let count = export.segments.len() as u16;
    for (index, segment) in export.segments.iter().enumerate() {
        let Segment { start, bytes, handle } = segment;
        let (how, descriptor) = match handle {
            Handle::Descriptor(fd) => (How::Descriptor, fd.try_clone().ok()),
            Handle::Ipc(handle) => (How::Ipc(*handle), None),
        };
        let part = Part {
            entry,
            index: index as u16,
            count,
            process: process(),
            start: *start,
            bytes: *bytes,
            region_start: export.start,
            region_bytes: export.bytes,
            gpu: export.gpu,
            how,
        };
        unsent.push_back((Record::Part(part), descriptor));
    }
}

fn is_later(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted)
}
