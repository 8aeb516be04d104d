//! What completes: how requests are called.

/// What a request is called: its peer, which use of it, which of its queues, and where in it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Name {
    pub kind: Kind,
    pub generation: u16,
    pub peer: u16,
    /// Position of a send; cell of a receive.
    pub at: u32,
}

/// The queue that a request went through.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub enum Kind {
    Send = 0,
    Receive = 1,
    /// The last of the sends.
    LastSend = 2,
    /// The last of the receives.
    LastReceive = 3,
}

impl Name {
    pub const GENERATION_MASK: u16 = 0x3fff;

    #[inline]
    pub const fn pack(self) -> u64 {
        (self.kind as u64) << 62
            | ((self.generation & Name::GENERATION_MASK) as u64) << 48
            | (self.peer as u64) << 32
            | self.at as u64
    }

    #[inline]
    pub const fn unpack(word: u64) -> Name {
        let kind = match word >> 62 {
            0 => Kind::Send,
            1 => Kind::Receive,
            2 => Kind::LastSend,
            _ => Kind::LastReceive,
        };
        let generation = (word >> 48) as u16 & Name::GENERATION_MASK;
        Name { kind, generation, peer: (word >> 32) as u16, at: word as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_requests_come_back_as_they_were() {
        for kind in [Kind::Send, Kind::Receive, Kind::LastSend, Kind::LastReceive] {
            let name = Name { kind, generation: 0x3ffe, peer: 0xfffd, at: 0xffff_fffc };
            assert_eq!(Name::unpack(name.pack()), name);
        }
    }
}
