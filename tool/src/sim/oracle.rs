//! What ought to happen, as plainly as it can be said.
#![forbid(unsafe_code)]

/// A message that was accepted.
#[derive(Copy, Clone, Debug)]
pub struct Sent {
    /// Its tag.
    pub tag: i32,
    /// Its length in bytes.
    pub length: usize,
    /// What its bytes are made of.
    pub seed: u64,
}

/// A group of receives that was accepted and not canceled.
#[derive(Clone, Debug)]
pub struct Posted {
    /// The tags in order.
    pub tags: Vec<i32>,
    /// Posted when the connection had ended at its side: it takes what lies there, or ends at once.
    pub is_late: bool,
}

/// Who gets what: for each receive of each group the number of its message, if it has one.
#[derive(Clone, Debug, Default)]
pub struct Pairing {
    /// By group, then by receive.
    pub messages: Vec<Vec<Option<usize>>>,
    /// Messages that no receive has.
    pub left: Vec<usize>,
}

/// Says which message belongs to which receive.
pub type Oracle = fn(&[Sent], &[Posted]) -> Pairing;

/// Pairs messages with receives: the oldest group that is not full takes, of the messages in
/// order, each that fits one of its free receives; then the next group. A late group holds no other
/// up.
pub fn pair(sent: &[Sent], posted: &[Posted]) -> Pairing {
    let mut left: Vec<usize> = (0..sent.len()).collect();
    let mut messages: Vec<Vec<Option<usize>>> =
        posted.iter().map(|group| vec![None; group.tags.len()]).collect();
    let mut is_held = false;
    for (group, receives) in posted.iter().zip(&mut messages) {
        if is_held && !group.is_late {
            continue;
        }
        let mut at = 0;
        while at < left.len() {
            let tag = sent[left[at]].tag;
            let free = (0..receives.len())
                .find(|receive| receives[*receive].is_none() && group.tags[*receive] == tag);
            match free {
                Some(receive) => receives[receive] = Some(left.remove(at)),
                None => at += 1,
            }
        }
        is_held |= !group.is_late && receives.iter().any(Option::is_none);
    }
    Pairing { messages, left }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_group_waits_for_the_oldest() {
        let sent = [(5, 0), (1, 0), (2, 0)].map(|(tag, seed)| Sent { tag, length: 0, seed });
        let posted = |tags: &[i32], is_late| Posted { tags: tags.to_vec(), is_late };
        let mut groups = vec![posted(&[2, 1], false), posted(&[5], false)];
        let pairing = pair(&sent, &groups);
        assert_eq!(pairing.messages, [vec![Some(2), Some(1)], vec![Some(0)]]);
        let pairing = pair(&sent[..2], &groups);
        assert_eq!(pairing.messages, [vec![None, Some(1)], vec![None]]);
        assert_eq!(pairing.left, [0]);
        groups.extend([posted(&[7], true), posted(&[5], true)]);
        let pairing = pair(&sent[..2], &groups);
        assert_eq!(pairing.messages[1..], [vec![None], vec![None], vec![Some(0)]]);
    }
}
