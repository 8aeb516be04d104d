//! Where the exchange of reports between the ends of a connection stands.
#![forbid(unsafe_code)]

/// Where it stands. One report of each side is unread at most.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct ReportState {
    /// Number of our last one.
    pub number: u32,
    /// There is something that it did not say.
    pub due: bool,
    /// The lane that carries it, until the peer has read it.
    pub unread_on: Option<u8>,
    /// It was lost with its lane, and is to be sent again.
    pub lost: bool,
    /// Number of the peer's last one.
    pub seen: u32,
    /// The peer is to be told that we have read it.
    pub read_due: bool,
    /// The lane on which it was told so last, and may not have heard it.
    pub read_on: Option<u8>,
}

impl ReportState {
    /// No report yet.
    pub const NONE: ReportState = ReportState {
        number: 0,
        due: false,
        unread_on: None,
        lost: false,
        seen: 0,
        read_due: false,
        read_on: None,
    };

    /// Whether ours is to be sent again, and whether a new one is to be sent.
    #[inline]
    pub const fn ours_due(&self) -> (bool, bool) {
        let is_unread = self.unread_on.is_some();
        (is_unread && self.lost, !is_unread && self.due)
    }

    /// Whether a word is due about either side's.
    #[inline]
    pub const fn is_due(&self) -> bool {
        let (again, fresh) = self.ours_due();
        again | fresh | self.read_due
    }
}
