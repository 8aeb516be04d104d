//! The threads that move long messages run where `CROSSTIE_TCP_THREAD_CPUS` says.

#![allow(dead_code)] // of the shared parts

mod host_support;
mod net_support;

use crosstie::host::{OpenError, Options};
use host_support::{Memory, Node, Place, Watch, joined, wait_both};
use net_support::tcp;

/// The CPUs that a task may run on, as the kernel lists them.
fn cpus_of(task: &str) -> String {
    let status = std::fs::read_to_string(format!("{task}/status")).unwrap();
    let row = status.lines().find_map(|row| row.strip_prefix("Cpus_allowed_list:")).unwrap();
    row.trim().to_owned()
}

/// The CPUs of each thread of this process with that name.
fn cpus_of_threads(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let tasks = tasks.map(|task| task.unwrap().path().to_str().unwrap().to_owned());
    let named = |task: &String| std::fs::read_to_string(format!("{task}/comm")).unwrap();
    tasks.filter(|task| named(task).trim() == name).map(|task| cpus_of(&task)).collect()
}

/// The same, when there are so many: a thread gives itself its name.
fn cpus_of_so_many(name: &str, count: usize) -> Vec<String> {
    let watch = Watch::start();
    loop {
        let cpus = cpus_of_threads(name);
        if cpus.len() == count {
            return cpus;
        }
        watch.look("threads with their names");
        std::thread::yield_now();
    }
}

/// Two endpoints between which a message has crossed each way: each has its threads then.
fn used(options: &Options) -> (Node, Node) {
    let (mut a, mut b) = (Node::open(options), Node::open(options));
    assert_eq!(cpus_of_threads(THREAD), [""; 0], "no peer, no threads");
    let (to_b, to_a) = joined(&mut a, &mut b);
    let (here, there) = (Memory::new(&a, Place::Private, 8), Memory::new(&b, Place::Private, 8));
    let receive = b.irecv(to_a, &[there.incoming(0, 8, 1)]).unwrap();
    a.isend(to_b, here.outgoing(0, 8, 1)).unwrap();
    assert_eq!(wait_both(&mut b, &mut a, receive).result, Ok(()));
    here.release(&a);
    there.release(&b);
    (a, b)
}

#[test]
fn copy_threads_run_on_the_cpus_of_the_setting_and_nowhere_else() {
    let here = cpus_of("/proc/thread-self");
    // the last one of a list like 0-3,8
    let last = here.rsplit([',', '-']).next().unwrap().to_owned();
    if last == here {
        println!("skipped: no choice of CPUs here: {here}");
        return;
    }
    let first = here.split([',', '-']).next().unwrap().parse::<u32>().unwrap();
    let options = tcp(2);
    for (name, value) in [("STREAMS", "2"), ("THREADS", "1"), ("THREAD_CPUS", last.as_str())] {
        host_support::set(format!("CROSSTIE_TCP_{name}"), value);
    }
    let both = used(&options);
    assert_eq!(cpus_of_so_many(THREAD, 2), [last.clone(), last.clone()]);
    assert_eq!(cpus_of("/proc/thread-self"), here);
    drop(both);
    // as mpirun and `crosstie perf` bind their processes: others may still be named
    crosstie::memory::probe::cpu_pin(first).unwrap();
    let both = used(&options);
    assert_eq!(cpus_of_so_many(THREAD, 2), [last.clone(), last]);
    assert_eq!(cpus_of("/proc/thread-self"), first.to_string());
    drop(both);
    host_support::set("CROSSTIE_TCP_THREAD_CPUS", format!("{first},1023"));
    assert_eq!(Node::try_open(&options).err(), Some(OpenError::Cpu(1023)));
    assert_eq!(cpus_of_threads(THREAD), [""; 0]);
}

/// What such a thread is called.
const THREAD: &str = "crosstie-copy";
