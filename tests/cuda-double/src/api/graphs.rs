//! Graphs: what a stream has recorded, in its order.

use crate::calls::{GLOBAL, calls};
use crate::codes::{INVALID_HANDLE, INVALID_VALUE, put};
use crate::context::current;
use crate::stream::{self, Node};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// Handles of graphs, of what is made of them, and of nodes are counted from here.
const FIRST: usize = 0x06ab_0000;

#[derive(Default)]
struct Graphs {
    last: usize,
    /// Of each graph or executable graph: nodes with their handles.
    known: BTreeMap<usize, Vec<(usize, Node)>>,
}

static GRAPHS: Mutex<Graphs> = Mutex::new(Graphs { last: FIRST, known: BTreeMap::new() });

fn graphs() -> MutexGuard<'static, Graphs> {
    GRAPHS.lock().expect("no panic while it is locked")
}

impl Graphs {
    fn name(&mut self) -> usize {
        self.last += 0x10;
        self.last
    }

    fn find(&self, graph: usize) -> Result<&Vec<(usize, Node)>, u32> {
        self.known.get(&graph).ok_or(INVALID_HANDLE)
    }
}

/// Graphs that live, and those made of them.
pub fn count() -> u64 {
    graphs().known.len() as u64
}

driver! {
    fn cuStreamBeginCapture_v2(stream: usize, mode: u32) {
        if mode > 2 {
            return Err(INVALID_VALUE);
        }
        stream::find(stream, current()?)?.capture_begin()?;
        calls().capturing |= mode == GLOBAL;
        Ok(())
    }

    fn cuStreamEndCapture(stream: usize, out: *mut usize) {
        let nodes = stream::find(stream, current()?)?.capture_end().ok_or(INVALID_VALUE)?;
        calls().capturing = false;
        let mut graphs = graphs();
        let nodes = nodes.into_iter().map(|node| (graphs.name(), node)).collect();
        let graph = graphs.name();
        graphs.known.insert(graph, nodes);
        put(out, graph)
    }

    fn cuStreamIsCapturing(stream: usize, out: *mut u32) {
        put(out, u32::from(stream::find(stream, current()?)?.is_capturing()))
    }

    fn cuGraphGetNodes(graph: usize, out: *mut usize, count: *mut usize) {
        let graphs = graphs();
        let nodes = graphs.find(graph)?;
        if !out.is_null() {
            // SAFETY: the caller's number of nodes, for which there is room.
            let room = unsafe { count.read() };
            for (at, (node, _)) in nodes.iter().take(room).enumerate() {
                // SAFETY: inside the room.
                unsafe { out.add(at).write(*node) };
            }
        }
        put(count, nodes.len())
    }

    fn cuGraphNodeGetType(node: usize, out: *mut u32) {
        let graphs = graphs();
        let mut all = graphs.known.values().flatten();
        let (_, found) = all.find(|(name, _)| *name == node).ok_or(INVALID_HANDLE)?;
        put(out, found.kind)
    }

    fn cuGraphInstantiateWithFlags(out: *mut usize, graph: usize, _flags: u64) {
        let mut graphs = graphs();
        let nodes = graphs.find(graph)?.clone();
        let made = graphs.name();
        graphs.known.insert(made, nodes);
        put(out, made)
    }

    fn cuGraphLaunch(graph: usize, stream: usize) {
        let stream = stream::find(stream, current()?)?;
        let nodes = graphs().find(graph)?.clone();
        for (_, node) in nodes {
            stream.call(node.operations)?;
        }
        Ok(())
    }

    fn cuGraphExecDestroy(graph: usize) {
        graphs().known.remove(&graph).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuGraphDestroy(graph: usize) {
        graphs().known.remove(&graph).map(|_| ()).ok_or(INVALID_HANDLE)
    }
}
