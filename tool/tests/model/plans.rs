//! What the models are about.

use crate::world::{Call, EAGER_BYTES, LONG_BYTES, Plan, Room};

const fn long(message: u8, buffer: usize) -> Call {
    Call::Send { message, tag: 0, length: LONG_BYTES, buffer }
}

const fn room(message: u8, buffer: usize) -> Room {
    Room { tag: 0, length: LONG_BYTES, buffer, message }
}

const ANY_END: &[(usize, usize)] = &[(0, 0), (0, 1), (1, 0), (1, 1)];

/// Two lanes, two messages of two stripes each; up to two ends fail, at any moment.
pub static STRIPES: Plan = Plan {
    name: "stripes",
    local: false,
    calls: [
        &[long(0, 0), long(1, 1)],
        &[Call::Receive(&[room(0, 0)]), Call::Receive(&[room(1, 1)])],
    ],
    settled: [0, 2],
    made: [2, 0],
    mortal: ANY_END,
    kills_max: 2,
    rejoins_max: 0,
};

/// One message of two stripes, and one death: few enough orders to see all of them.
pub static SMALL: Plan = Plan {
    name: "small",
    calls: [&[long(0, 0)], &[Call::Receive(&[room(0, 0)])]],
    settled: [0, 1],
    made: [1, 0],
    kills_max: 1,
    ..STRIPES
};

/// The same where ops are complete before they have landed.
pub static STRIPES_LOCAL: Plan = Plan { name: "stripes, local", local: true, ..STRIPES };

/// A group of two tags, an early message into it, a slot and buffers used again; control moves,
/// and a lane comes back.
pub static GROUPS: Plan = Plan {
    name: "groups",
    local: true,
    calls: [
        &[
            Call::Send { message: 0, tag: 1, length: EAGER_BYTES, buffer: 0 },
            Call::Send { message: 1, tag: 2, length: LONG_BYTES, buffer: 1 },
            Call::Send { message: 2, tag: 0, length: LONG_BYTES, buffer: 2 },
        ],
        &[
            Call::Receive(&[
                Room { tag: 2, length: LONG_BYTES, buffer: 0, message: 1 },
                Room { tag: 1, length: LONG_BYTES, buffer: 1, message: 0 },
            ]),
            Call::Receive(&[Room { tag: 0, length: LONG_BYTES, buffer: 2, message: 2 }]),
        ],
    ],
    settled: [1, 0],
    made: [1, 1],
    mortal: &[(0, 0), (1, 0)],
    kills_max: 1,
    rejoins_max: 1,
};

/// More of everything, in both directions, and lanes that die and come back again and again: for
/// random walks.
pub static LONG: Plan = Plan {
    name: "long",
    local: false,
    calls: [
        &[
            long(0, 0),
            Call::Send { message: 1, tag: 0, length: EAGER_BYTES, buffer: 0 },
            Call::Receive(&[room(6, 3)]),
            long(2, 1),
            long(3, 0),
            Call::Send { message: 4, tag: 0, length: 0, buffer: 0 },
            Call::Receive(&[Room { tag: 1, ..room(7, 2) }]),
            long(5, 2),
        ],
        &[
            Call::Receive(&[room(0, 0)]),
            Call::Receive(&[room(1, 1), room(2, 2)]),
            long(6, 0),
            Call::Receive(&[room(3, 3)]),
            Call::Send { message: 7, tag: 1, length: EAGER_BYTES, buffer: 0 },
            Call::Receive(&[room(4, 0)]),
            Call::Receive(&[room(5, 1)]),
        ],
    ],
    settled: [0, 0],
    made: [0, 0],
    mortal: ANY_END,
    kills_max: 12,
    rejoins_max: 9,
};

/// The same where ops are complete before they have landed.
pub static LONG_LOCAL: Plan = Plan { name: "long, local", local: true, ..LONG };

/// So many short messages that their numbers need more than ten bits.
const MANY: usize = 1_200;

const fn stream_sends() -> [Call; MANY] {
    let mut calls = [long(0, 0); MANY];
    let mut at = 0;
    while at < MANY {
        calls[at] = Call::Send { message: (at % 4) as u8, tag: 0, length: EAGER_BYTES, buffer: 0 };
        at += 1;
    }
    calls
}

const fn stream_receives() -> [Call; MANY] {
    const FOUR: [&[Room]; 4] = [&[room(0, 0)], &[room(1, 1)], &[room(2, 2)], &[room(3, 3)]];
    let mut calls = [long(0, 0); MANY];
    let mut at = 0;
    while at < MANY {
        calls[at] = Call::Receive(FOUR[at % 4]);
        at += 1;
    }
    calls
}

static STREAM_SENDS: [Call; MANY] = stream_sends();
static STREAM_RECEIVES: [Call; MANY] = stream_receives();

/// A long stream, on lanes that die and come back.
pub static STREAM: Plan = Plan {
    name: "stream",
    local: true,
    calls: [&STREAM_SENDS, &STREAM_RECEIVES],
    settled: [0, 0],
    made: [0, 0],
    mortal: ANY_END,
    kills_max: 40,
    rejoins_max: 40,
};
