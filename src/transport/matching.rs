//! Which receive of a group a message fills: the one function that both sides apply.
#![forbid(unsafe_code)]

/// The first receive that is not bound and has `tag`. `bound` has bit `i` set when receive `i` is
/// taken; `tags` are those of the group in order.
#[inline]
pub fn find(tags: impl Iterator<Item = i32>, bound: u8, tag: i32) -> Option<u8> {
    for (index, receive_tag) in tags.enumerate() {
        if receive_tag == tag && bound >> index & 1 == 0 {
            return Some(index as u8);
        }
    }
    None
}

/// The `bound` mask of a group of `count` receives that are all taken.
pub const fn full(count: u8) -> u8 {
    ((1u16 << count) - 1) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_first_free_receive_with_the_tag() {
        let tags = [7, -1, 7];
        assert_eq!(find(tags.into_iter(), 0b000, 7), Some(0));
        assert_eq!(find(tags.into_iter(), 0b001, 7), Some(2));
        assert_eq!(find(tags.into_iter(), 0b101, 7), None);
        assert_eq!(find(tags.into_iter(), 0b101, -1), Some(1));
        assert_eq!(find(tags.into_iter(), 0, i32::MAX), None);
        assert_eq!(full(8), 0xff);
        assert_eq!(full(1), 1);
    }
}
