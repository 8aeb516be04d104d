//! The devices of a host: what an endpoint can be opened on.
#![forbid(unsafe_code)]

/// A device.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum DeviceKind {
    /// Processes of this host, through shared memory.
    SharedMemory,
    /// This endpoint itself, for tests and measurements.
    Loopback,
}

/// All devices, in the order of their numbers. The order is the same in every process.
pub const DEVICES: [DeviceKind; 2] = [DeviceKind::SharedMemory, DeviceKind::Loopback];

/// What is known of a device.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct DeviceProperties {
    /// Which.
    pub kind: DeviceKind,
    /// Its name: `shm0`, `loopback0`.
    pub name: &'static str,
    /// What it reaches, for people.
    pub description: &'static str,
    /// Whether it can be used here.
    pub available: bool,
    /// Why not, or what is missing although it can.
    pub remark: &'static str,
    /// A rough bandwidth in Mbit/s, for schedulers.
    pub speed_mbps: u32,
    /// Most receives in one group.
    pub group_max: u32,
}

/// The properties of a device on this host.
pub fn properties(kind: DeviceKind) -> DeviceProperties {
    let group_max = crate::wire::GROUP_MAX as u32;
    match kind {
        DeviceKind::SharedMemory => DeviceProperties {
            kind,
            name: "shm0",
            description: "processes of this host, through shared memory",
            available: true,
            remark: "",
            speed_mbps: 80_000,
            group_max,
        },
        DeviceKind::Loopback => DeviceProperties {
            kind,
            name: "loopback0",
            description: "this endpoint itself, for tests and measurements",
            available: true,
            remark: "reaches no other endpoint",
            speed_mbps: 80_000,
            group_max,
        },
    }
}
