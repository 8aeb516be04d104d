//! What set-up tells the data thread of connections, and what that does with it.

use super::connections::connections;
use super::known::{Fresh, Known};
use crate::base::ids::ConnectionIndex;
use crate::base::slab::Handle;
use crate::connect::BandEvent;
use crate::host::endpoint::Endpoint;
use crate::host::machine::{Machine, each};
use crate::host::shared::SetUp;
use crate::memory::locked;
use crate::transport::endpoint::ConnectionCloseError;

impl Endpoint {
    #[cold]
    #[inline(never)]
    pub(in crate::host) fn events_take(&mut self) {
        while let Some(event) = self.events.pop() {
            self.event(event);
        }
    }

    /// Takes what there is to know of a connection whose handle is live. What nobody has taken of
    /// earlier ones may have filled the queue, so that its own news are still owed.
    pub(in crate::host) fn news_take(&mut self, connection: Handle) {
        self.events_take();
        let index = connection.index as usize;
        while self.known.get(index).is_some_and(|known| known.generation != connection.generation) {
            let is_all = match &self.shared.set_up {
                SetUp::Band(band) => band.tell(),
                SetUp::Own(own) => {
                    for (Handle { index, generation }, params) in locked(own).use_both(index) {
                        if self.known[index as usize].generation != generation {
                            self.known[index as usize] = Known::new(generation, params);
                        }
                    }
                    true
                }
            };
            self.events_take();
            if is_all {
                return;
            }
        }
    }

    fn event(&mut self, event: BandEvent) {
        match event {
            BandEvent::Established { index, generation, params } => {
                self.lanes.forget(index);
                self.known[index as usize] = Known::new(generation, params);
            }
            BandEvent::Lane { index, generation, lane, lane_generation, streams, stream_count } => {
                if self.known[index as usize].generation == generation {
                    let fresh = Fresh { generation: lane_generation, streams, stream_count };
                    self.lanes.came(&mut connections!(self), index, lane, fresh);
                }
            }
            BandEvent::Pair { index, generation, lane, lane_generation } => {
                if self.used(Handle { index, generation }).is_some() {
                    self.lanes.pair_came(&mut connections!(self), index, lane, lane_generation);
                }
            }
            BandEvent::Vouch { index, generation, patience } => {
                let connection = Handle { index, generation };
                self.vouching.begin(&mut connections!(self), connection, patience);
            }
            BandEvent::LaneGone { index, generation, lane, cause, silent } => {
                if self.known[index as usize].generation == generation {
                    self.lanes.gone(&mut connections!(self), index, lane, (cause, silent));
                }
            }
            BandEvent::Gone { index, generation, cause } => {
                let known = &mut self.known[index as usize];
                if known.generation != generation {
                    return;
                }
                known.gone = Some(cause);
                if known.in_use {
                    connections!(self).gone(index, cause, cause);
                }
                if matches!(self.machine, Machine::Loopback(_)) {
                    self.orphans += 1;
                    self.orphans_end();
                }
            }
        }
    }

    /// Closes the ends of loopback connections that nobody has accepted, and nobody will.
    #[cold]
    #[inline(never)]
    pub(in crate::host) fn orphans_end(&mut self) {
        for index in 0..self.known.len() as u32 {
            let Known { gone: Some(_), in_use, .. } = self.known[index as usize] else { continue };
            let closed = each!(&mut self.machine, endpoint => {
                endpoint.connection_close(ConnectionIndex(index))
            });
            if in_use && closed == Err(ConnectionCloseError::Again) {
                continue;
            }
            let known = &mut self.known[index as usize];
            (known.in_use, known.gone) = (false, None);
            self.orphans -= 1;
            if let SetUp::Own(own) = &self.shared.set_up {
                locked(own).release(index);
            }
        }
    }
}
