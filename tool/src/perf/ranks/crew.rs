//! Ranks without a launcher: this program again, as many times as were asked for, on this host.
#![forbid(unsafe_code)]

use crate::Failure;
use crate::launch;
use crate::perf::once;
use crate::rendezvous::{MEET_SECONDS, Rendezvous};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the others may take to end after rank 0 has.
const END: Duration = Duration::from_secs(5);

/// The processes that this one has started.
pub struct Crew {
    children: Vec<Child>,
}

impl Crew {
    /// Starts ranks 1 and up with the same arguments, and meets them as rank 0.
    pub fn start(size: u32, args: &[String]) -> Result<(Crew, Rendezvous), Failure> {
        let system = |error| format!("rendezvous: {error}");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(system)?;
        let address = listener.local_addr().map_err(system)?;
        let variables = |rank: u32| {
            [
                ("CROSSTIE_RANK", rank.to_string()),
                ("CROSSTIE_SIZE", size.to_string()),
                ("CROSSTIE_LOCAL_RANK", rank.to_string()),
                ("CROSSTIE_RENDEZVOUS", address.to_string()),
            ]
        };
        let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let mut crew = Crew { children: Vec::new() };
        for rank in 1..size {
            let mut command = Command::new(&program);
            command.arg("perf").args(args).args([once::WARNED, &once::warned()]);
            command.envs(variables(rank));
            command.stdin(Stdio::null()).stdout(Stdio::null());
            let child = command.spawn();
            crew.children.push(child.map_err(|error| format!("starting rank {rank}: {error}"))?);
        }
        let own = variables(0);
        let get = |name: &str| {
            own.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
        };
        let launch = launch::read(&get)?.ok_or("fewer than two processes")?;
        let deadline = Instant::now() + Duration::from_secs(MEET_SECONDS);
        let met = Rendezvous::serve(&listener, &launch, deadline)?;
        Ok((crew, met))
    }

    /// Waits for all to end well.
    pub fn finish(mut self) -> Result<(), Failure> {
        let began = Instant::now();
        for (at, child) in self.children.iter_mut().enumerate() {
            loop {
                match child.try_wait() {
                    Ok(Some(status)) if status.success() => break,
                    Ok(Some(status)) => return Err(format!("rank {} ended with {status}", at + 1)),
                    Ok(None) if began.elapsed() < END => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    _ => return Err(format!("rank {} does not end", at + 1)),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Both fail only for a child that has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
