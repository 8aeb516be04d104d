//! W11: what one end of a queue pair tells the other before either sends.

use super::super::{DecodeError, wire_struct};

/// Bytes of the numbers that name queue pairs and packets: 24 bits.
const NUMBER_MAX: u32 = 0xff_ffff;
/// Smallest and largest packets that there are, in bytes of payload.
const MTU_BYTES: core::ops::RangeInclusive<u32> = 256..=4096;

wire_struct! {
    /// W11. One end of one queue pair.
    QueuePairHello [64] {
        /// The writer's GID, byte for byte.
        gid: u128 = 0,
        /// Number of its queue pair.
        number: u32 = 16,
        /// First packet that it sends.
        first_packet: u32 = 20,
        /// Largest packet of its port, in bytes.
        mtu_bytes: u32 = 24,
        /// Receives that it keeps posted for sends and immediates.
        receives: u32 = 28,
        /// Longest payload of a send that fits into one of them, in bytes.
        payload_bytes_max: u32 = 32,
        /// How often this rail was brought up.
        generation: u32 = 36,
        /// Its port's local address; 0 on Ethernet.
        lid: u16 = 40,
        /// Reads and adds of the reader's that it answers at a time.
        reads_max: u16 = 42,
        /// 1 on InfiniBand, 2 on Ethernet.
        link_layer: u16 = 44,
        /// Whose extensions its device has (ECE); 0: none.
        ece_vendor: u32 = 48,
        /// Which of them, as bits that only that vendor's devices can tell.
        ece_options: u32 = 52,
    }
}

impl QueuePairHello {
    /// Reads one, and checks it.
    pub fn decode(bytes: &[u8]) -> Result<QueuePairHello, DecodeError> {
        let bytes = bytes.first_chunk().ok_or(DecodeError::Short)?;
        QueuePairHello::from_bytes(bytes).checked()
    }

    /// Checks what a device would refuse later with less to say.
    pub fn checked(self) -> Result<QueuePairHello, DecodeError> {
        let hello = self;
        let numbers = hello.number <= NUMBER_MAX && hello.first_packet <= NUMBER_MAX;
        let mtu = hello.mtu_bytes.is_power_of_two() && MTU_BYTES.contains(&hello.mtu_bytes);
        let layer = matches!(hello.link_layer, 1 | 2);
        let reads = hello.reads_max <= u8::MAX.into();
        if !numbers || !mtu || !layer || !reads || hello.receives == 0 {
            return Err(DecodeError::Field);
        }
        Ok(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: QueuePairHello = QueuePairHello {
        gid: u128::from_le_bytes(*b"\xfe\x80 0123456789abc"),
        number: 0xff_fffe,
        first_packet: 7,
        mtu_bytes: 4096,
        receives: 64,
        payload_bytes_max: 8192,
        generation: 3,
        lid: 0,
        reads_max: 16,
        link_layer: 2,
        ece_vendor: 0x2c9,
        ece_options: 0x3000_0005,
    };

    #[test]
    fn hello_comes_back_as_it_was_written() {
        let bytes = GOOD.encode();
        assert_eq!(&bytes[..4], b"\xfe\x80 0", "a GID keeps the order of its bytes");
        assert_eq!(QueuePairHello::decode(&bytes), Ok(GOOD));
        assert_eq!(QueuePairHello::decode(&bytes[..63]), Err(DecodeError::Short));
    }

    #[test]
    fn what_no_device_takes_is_refused() {
        for bad in [
            QueuePairHello { number: 0x100_0000, ..GOOD },
            QueuePairHello { first_packet: 0x100_0000, ..GOOD },
            QueuePairHello { mtu_bytes: 1500, ..GOOD },
            QueuePairHello { mtu_bytes: 8192, ..GOOD },
            QueuePairHello { receives: 0, ..GOOD },
            QueuePairHello { reads_max: 256, ..GOOD },
            QueuePairHello { link_layer: 0, ..GOOD },
        ] {
            assert_eq!(QueuePairHello::decode(&bad.encode()), Err(DecodeError::Field), "{bad:?}");
        }
    }
}
