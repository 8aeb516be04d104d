//! The thread that executes what kernels queue: what it tells, and where it runs.

use super::*;
use crosstie::connect::text_door::texts;
use crosstie::host::gin::report::DOOR;
use crosstie::memory::CpuSet;

/// Sets a variable of this rank, before the plugin reads any.
pub fn set(name: &str, value: &str) {
    // SAFETY: a rank has no other thread yet that looks at the environment.
    unsafe { std::env::set_var(name, value) };
}

/// The words of a report of this rank that has come.
pub fn report_with(words: &str) -> String {
    let mut text = String::new();
    wait_until(words, || {
        text = texts(DOOR, std::process::id(), WATCHDOG).unwrap().join("\n");
        text.contains(words)
    });
    text
}

/// What `report_with` reads of an age was seen by a look that has said the stall before.
#[test]
fn a_queue_that_stands_is_reported_when_asked_and_once_by_itself() {
    const NAME: &str = "thread::a_queue_that_stands_is_reported_when_asked_and_once_by_itself";
    if !is_child() {
        let child = start(NAME, 14, 1).remove(0);
        let Output { status, stderr, .. } = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{text}");
        let said: Vec<_> = text.lines().filter(|line| line.contains("gin: stalled")).collect();
        assert_eq!(said.len(), 1, "{text}");
        assert!(said[0].contains("it waits for entry 0 of queue"), "{text}");
        return;
    }
    set("CROSSTIE_STALL_MS", "1");
    let rank = Rank::open();
    let (mut queue, mut companion) = (rank.device.queue(0, false), rank.device.queue(0, true));
    let at = companion.post(&Work::Wait { queue: queue.number(), index: 0 });
    let waits = format!("waits for entry 0 of queue {:#x}, which has completed 0", queue.number());
    let idle = "4 queues, 4 without an open entry";
    wait_until("an age", || !report_with(&waits).contains("open for 0 ms"));
    let text = report_with(&waits);
    assert!(text.contains("GPU-initiated: rank 0 of 1") && !text.contains(idle), "{text}");
    assert!(text.contains("1 entries announced, 0 taken, 0 completed"), "{text}");
    queue.post(&Work::Nop);
    wait_until("the wait", || companion.poll(at) == Some(Ok(())));
    report_with(idle);
    rank.close(&[]);
}

/// Where the thread of that name may run. It gives itself the name.
fn cpus_of_thread() -> Option<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let text = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).ok();
    let status = tasks.filter_map(text).find(|status| status.starts_with("Name:\tcrosstie-gin\n"));
    let status = status?;
    let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:"))?;
    line.split_whitespace().last().map(String::from)
}

#[test]
fn it_runs_on_the_cpus_that_a_setting_names() {
    if !is_child() {
        return all_succeed(start("thread::it_runs_on_the_cpus_that_a_setting_names", 11, 1));
    }
    let cpu = CpuSet::of_this_thread().iter().last().unwrap().to_string();
    set("CROSSTIE_GIN_CPUS", &cpu);
    let rank = Rank::open();
    let mut cpus = None;
    wait_until("the thread", || {
        cpus = cpus_of_thread();
        cpus.is_some()
    });
    assert_eq!(cpus, Some(cpu));
    rank.close(&[]);
}

/// `connect` fails, and leaves no thread.
#[test]
fn a_cpu_that_this_host_lacks_is_an_error() {
    if !is_child() {
        return all_succeed(start("thread::a_cpu_that_this_host_lacks_is_an_error", 11, 1));
    }
    set("CROSSTIE_GIN_CPUS", "1023");
    let (mut init, mut listener, mut coll) = (null_mut(), null_mut(), null_mut());
    let mut handle = [0u8; 128];
    let mut list: [Pointer; 1] = [handle.as_mut_ptr().cast()];
    // SAFETY: what the plugin, or the double, has given, as NCCL and its kernels use it.
    unsafe {
        assert_eq!(gin_v11::init(&mut init, 0, None), 0);
        assert_eq!(gin_v11::listen::<GIN_V11>(init, 0, list[0], &mut listener), 0);
        let made = gin_v11::connect(null_mut(), list.as_mut_ptr(), 1, 0, listener, &mut coll);
        assert!(made != 0 && coll.is_null());
        assert_eq!(gin_v11::close_listen(listener), 0);
        assert_eq!(gin_v11::finalize(init), 0);
    }
    assert!(!threads().contains(&"crosstie-gin".to_string()), "the thread has not ended");
}
