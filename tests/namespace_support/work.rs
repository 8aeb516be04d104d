//! What the processes of a test do: they take a connection and do with it what the test says.

use crate::host_support::exchange::Exchange;
use crate::host_support::flow::Flow;
use crate::host_support::roles::{self, Line};
use crate::host_support::{Memory, Node, Place, small};
use crosstie::base::slab::Handle;
use crosstie::base::units::Bytes;
use crosstie::host::{ConnectError, Options};
use crosstie::transport::RequestId;
use crosstie::transport::rail::LaneState;
use crosstie::wire::handle::ListenHandle;
use std::time::Instant;

/// Opens an endpoint, says its handle, and works on the connection that comes.
pub fn role_listen() {
    let mut line = roles::line();
    let mut node = open();
    let (listener, handle) = node.shared.listen().unwrap();
    line.say(&handle);
    let connection = node.accepted(listener);
    work(node, connection, line, 0);
}

/// Hears a handle, says how connecting ended, and works on the connection.
pub fn role_connect() {
    let mut line = roles::line();
    let handle = line.hear::<128>();
    let mut node = open();
    let connected = match node.shared.connect(&handle) {
        Ok(attempt) => node.connected(attempt),
        Err(error) => Err(error),
    };
    match connected {
        Ok(connection) => {
            line.say_text("connected");
            work(node, connection, line, 1);
        }
        Err(error) => line.say_text(&sentence(&error)),
    }
}

/// Says how opening an endpoint and a listener ends.
pub fn role_open() {
    let mut line = roles::line();
    let node = match Node::try_open(&options()) {
        Ok(node) => node,
        Err(error) => return line.say_text(&format!("open {error:?}: {error}")),
    };
    line.say_text(&match node.shared.listen() {
        Ok((_, handle)) => {
            let handle = ListenHandle::decode(&handle).expect("our own");
            let families = handle.addresses.map(|address| format!("{:?}", address.family));
            format!("listens {}", families.join(" "))
        }
        Err(error) => format!("listen {error:?}: {error}"),
    });
}

/// Takes two connections, says over what each runs, and exchanges on one after the other.
pub fn role_hub() {
    let mut line = roles::line();
    let mut node = open();
    let (listener, handle) = node.shared.listen().unwrap();
    line.say(&handle);
    let connections = [(); 2].map(|()| {
        let connection = node.accepted(listener);
        line.say_text(&rail(&mut node, connection));
        connection
    });
    let exchanges = connections.map(|to| Exchange::new(&node, to, 0, Place::Private));
    for exchange in &exchanges {
        let [rounds, seed] = [line.hear_number(), line.hear_number()];
        line.say_number(exchange.run(&mut node, rounds, seed));
    }
    line.hear_text();
    connections.into_iter().for_each(|connection| node.disconnect(connection));
}

/// Over what a connection runs.
fn rail(node: &mut Node, connection: Handle) -> String {
    format!("{:?}", node.connection_rail(connection).expect("a live connection"))
}

/// How each rail of a connection is: in use or not, bytes, failures, joins, last code.
fn rails(node: &Node, connection: Handle) -> String {
    let views = (0..8).map_while(|lane| node.lane_view(connection, lane));
    let words = views.map(|view| {
        let up = u8::from(view.state == LaneState::Up);
        let stats = view.stats;
        format!("{up} {} {} {} {}", stats.bytes, stats.failures, stats.joins, view.code)
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Its name and what it says.
fn sentence(error: &ConnectError) -> String {
    format!("{error:?}: {error}")
}

fn options() -> Options {
    Options { heap_bytes: Bytes::mib(256), ..small(8) }
}

fn open() -> Node {
    Node::open(&options())
}

/// Does what the test says, line by line, until it says that it is over.
fn work(mut node: Node, connection: Handle, mut line: Line, side: u64) {
    loop {
        match line.hear_text().as_str() {
            "exchange" => {
                let [rounds, seed] = [line.hear_number(), line.hear_number()];
                let place = if seed % 2 == 0 { Place::Shared } else { Place::Private };
                let exchange = Exchange::new(&node, connection, side, place);
                line.say_number(exchange.run(&mut node, rounds, seed));
                exchange.release(&node);
            }
            "rails" => line.say_text(&rails(&node, connection)),
            "rail" => line.say_text(&rail(&mut node, connection)),
            "flow" => flow(&mut node, connection, &mut line, |_, _| "flows".into()),
            "flow on rails" => flow(&mut node, connection, &mut line, rails),
            "wait" => wait(&mut node, connection, &mut line),
            "stream" => stream(&mut node, connection, &mut line, side),
            "close" => {
                node.disconnect(connection);
                line.say_text("closed");
            }
            "end" => break,
            other => panic!("{other}"),
        }
    }
    node.close();
}

/// Lets messages flow until the test says something or they end; says from time to time that they
/// do, and how they ended.
fn flow(
    node: &mut Node,
    connection: Handle,
    line: &mut Line,
    word: impl Fn(&Node, Handle) -> String,
) {
    let mut flow = Flow::new(node, connection, Place::Private);
    let mut said = 0;
    loop {
        flow.step(node);
        if flow.failed() && flow.outstanding() == 0 {
            break;
        }
        if flow.received >= said + 16 {
            said = flow.received;
            line.say_text(&word(node, connection));
        }
        if !flow.failed() && line.is_ready() {
            break;
        }
    }
    let refused = flow.refused.map(|error| format!(" {error:?}")).unwrap_or_default();
    let errors: Vec<String> = flow.errors.iter().map(|error| format!("{error:?}")).collect();
    line.say_text(&format!("ended {}{refused}", errors.join(" ")));
}

/// Waits for a message that never comes, and says how that ended.
fn wait(node: &mut Node, connection: Handle, line: &mut Line) {
    let memory = Memory::new(node, Place::Private, 64);
    let receive = node.irecv(connection, &[memory.incoming(0, 64, 0)]).unwrap();
    line.say_text("waits");
    let result = node.wait(receive).result;
    memory.release(node);
    line.say_text(&format!("ended {result:?}"));
}

/// Messages of the stream, and how many of them stand at a time.
pub const STREAM: (usize, usize) = (1 << 20, 8);

/// Side 1 sends as many messages as the test says; side 0 says how many nanoseconds each eighth of
/// them took to arrive.
fn stream(node: &mut Node, connection: Handle, line: &mut Line, side: u64) {
    let count = line.hear_number() as usize;
    let (length, depth) = STREAM;
    let memory = Memory::new(node, Place::Private, length * depth);
    let mut requests: [Option<RequestId>; STREAM.1] = [None; STREAM.1];
    let post = |node: &mut Node, at: usize| match side {
        0 => node.irecv(connection, &[memory.incoming(at * length, length, 0)]).unwrap(),
        _ => node.isend(connection, memory.outgoing(at * length, length, 0)).unwrap(),
    };
    for (at, request) in requests.iter_mut().enumerate() {
        *request = Some(post(node, at));
    }
    let mut start = Instant::now();
    for number in 0..count {
        let at = number % depth;
        let request = requests[at].take().expect("posted");
        assert_eq!(node.sleep_until_done(request).0, Ok(()));
        if number + depth < count {
            requests[at] = Some(post(node, at));
        }
        if side == 0 && (number + 1) % (count / 8) == 0 {
            line.say_number(start.elapsed().as_nanos() as u64);
            start = Instant::now();
        }
    }
    memory.release(node);
    line.say_text("done");
}
