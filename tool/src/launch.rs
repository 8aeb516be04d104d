//! Which of several processes this one is, and where they meet: read from the variables that
//! mpirun, srun and torchrun set for the processes that they start.
//!
//! Everything here is a function of an environment, handed over as a lookup, so that every
//! launcher can be tested without it. `examples-c/launch.h` is the same in C.
#![forbid(unsafe_code)]

use super::Failure;
use crosstie::base::hash::fnv1a;
use crosstie::memory::Variables;

/// Most processes of a launch.
pub const RANKS_MAX: u32 = 1024;
/// Ports that are derived from a job's name: below those that the kernel hands out by itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// What a user sets when no launcher says where to meet.
const HOW: &str = "set CROSSTIE_RENDEZVOUS=HOST:PORT to an address of rank 0's host";

/// Looks a variable up.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Who said which rank this is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Launcher {
    /// The user, or `crosstie perf --processes`.
    Crosstie,
    /// torchrun, or a script that sets what it sets.
    Torchrun,
    /// OpenMPI's mpirun.
    OpenMpi,
    /// Another mpirun that speaks PMI, such as MPICH's.
    Pmi,
    /// srun.
    Slurm,
}

/// The variables of a launcher. An empty name: it has no such variable.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    size: &'static [&'static str],
    local_rank: &'static str,
    /// Without this one the others do not count.
    mark: &'static str,
}

/// In the order in which they are believed: what was started last stands first. torchrun is
/// started inside a task of srun or mpirun, never the other way round, and leaves a mark; its plain
/// names may stand in any environment, and come last.
const LAUNCHERS: &[Names] = &[
    Names {
        launcher: Launcher::Crosstie,
        rank: "CROSSTIE_RANK",
        size: &["CROSSTIE_SIZE"],
        local_rank: "CROSSTIE_LOCAL_RANK",
        mark: "CROSSTIE_RANK",
    },
    Names {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        size: &["WORLD_SIZE"],
        local_rank: "LOCAL_RANK",
        mark: "TORCHELASTIC_RUN_ID",
    },
    Names {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        mark: "OMPI_COMM_WORLD_RANK",
    },
    Names {
        launcher: Launcher::Pmi,
        rank: "PMI_RANK",
        size: &["PMI_SIZE"],
        local_rank: "MPI_LOCALRANKID",
        mark: "PMI_RANK",
    },
    // A batch script has SLURM_PROCID too; only tasks of a step have the step's number.
    Names {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: "SLURM_LOCALID",
        mark: "SLURM_STEP_ID",
    },
    Names {
        launcher: Launcher::Pmi,
        rank: "PMIX_RANK",
        size: &["PMIX_SIZE"],
        local_rank: "PMIX_LOCAL_RANK",
        mark: "PMIX_RANK",
    },
    Names {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        size: &["WORLD_SIZE"],
        local_rank: "LOCAL_RANK",
        mark: "WORLD_SIZE",
    },
];

/// Where the processes meet.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Meeting {
    /// Names or addresses of rank 0's host; the others try each.
    pub hosts: Vec<String>,
    /// The port that rank 0 listens on.
    pub port: u16,
    /// What tells this launch from others that happen to meet at the same port.
    pub key: u64,
}

/// This process among those that were started together.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Launch {
    /// Who said so.
    pub launcher: Launcher,
    /// Its number, from zero.
    pub rank: u32,
    /// How many there are, two at least.
    pub size: u32,
    /// Its number among those of its host; its rank when nobody says.
    pub local_rank: u32,
    /// Where they meet.
    pub meeting: Meeting,
}

/// The process environment.
pub fn environment(name: &str) -> Option<String> {
    Variables::of_process().text(name)
}

/// What the environment says. `None`: no launcher, or a single process.
///
/// *Errors*: a sentence that names the variable that is wrong or missing.
pub fn read(get: Environment) -> Result<Option<Launch>, Failure> {
    let Some(names) = LAUNCHERS.iter().find(|names| {
        let set = |name| get(name).is_some();
        set(names.mark) && set(names.rank) && step_of_tasks(names, get)
    }) else {
        return incomplete(get).map_or(Ok(None), Err);
    };
    let size = size(names, get)?;
    if size == 1 && get("CROSSTIE_RENDEZVOUS").is_some() {
        let name = names.size[0];
        return Err(format!(
            "{name} is 1 and CROSSTIE_RENDEZVOUS is set: one process has no other to meet"
        ));
    }
    if size == 1 {
        return Ok(None);
    }
    let rank = number(get, names.rank, u64::from(size) - 1)?.unwrap_or(0) as u32;
    let local_rank = number(get, names.local_rank, u64::from(RANKS_MAX))?;
    let local_rank = local_rank.map_or(rank, |number| number as u32);
    let meeting = meeting(names.launcher, size, get)?;
    Ok(Some(Launch { launcher: names.launcher, rank, size, local_rank, meeting }))
}

/// Why variables of a launcher that are set do not make a launch; `None`: there are none.
fn incomplete(get: Environment) -> Option<Failure> {
    let set = |name: &str| get(name).is_some();
    for (there, missing) in [("CROSSTIE_SIZE", "CROSSTIE_RANK"), ("RANK", "WORLD_SIZE")] {
        if set(there) && !set(missing) {
            return Some(format!("{there} is set but {missing} is not; set both, or neither"));
        }
    }
    for there in ["CROSSTIE_RENDEZVOUS", "CROSSTIE_LOCAL_RANK"] {
        if set(there) {
            return Some(format!(
                "{there} is set but CROSSTIE_RANK and CROSSTIE_SIZE are not, and no launcher is \
                 seen; set all, or none"
            ));
        }
    }
    let tasks = get("SLURM_NTASKS").and_then(|tasks| tasks.trim().parse::<u32>().ok());
    match tasks {
        Some(tasks @ 2..) if set("SLURM_PROCID") && !set("SLURM_STEP_ID") => Some(format!(
            "this is the batch script of {tasks} tasks, not one of the tasks: start it with srun, \
             or unset SLURM_NTASKS"
        )),
        _ => None,
    }
}

/// Steps without tasks of their own (a batch script, an interactive shell) have the highest numbers
/// that there are.
fn step_of_tasks(names: &Names, get: Environment) -> bool {
    names.launcher != Launcher::Slurm
        || get(names.mark).and_then(|id| id.parse::<u32>().ok()).is_some_and(|id| id < 0xffff_fff0)
}

fn size(names: &Names, get: Environment) -> Result<u32, Failure> {
    for name in names.size {
        if let Some(size) = number(get, name, u64::from(RANKS_MAX))? {
            return match size {
                0 => Err(format!("{name} is 0, but there is at least one process")),
                size => Ok(size as u32),
            };
        }
    }
    let (rank, size) = (names.rank, names.size[0]);
    Err(format!("{rank} is set but {size} is not; set CROSSTIE_RANK and CROSSTIE_SIZE"))
}

fn number(get: Environment, name: &str, max: u64) -> Result<Option<u64>, Failure> {
    let Some(text) = get(name) else { return Ok(None) };
    match text.trim().parse::<u64>() {
        Ok(number) if number <= max => Ok(Some(number)),
        _ => Err(format!("{name}={text} is not a number from 0 to {max}")),
    }
}

/// Told addresses first, then what the launcher itself knows.
fn meeting(launcher: Launcher, size: u32, get: Environment) -> Result<Meeting, Failure> {
    if let Some(told) = told(get)? {
        return Ok(told);
    }
    match launcher {
        Launcher::OpenMpi => open_mpi(size, get),
        Launcher::Slurm => slurm(get),
        Launcher::Pmi if get("SLURM_STEP_ID").is_some() => slurm(get),
        Launcher::Pmi => Err(format!("this launcher does not say where its rank 0 is; {HOW}")),
        Launcher::Torchrun => Err(format!("MASTER_ADDR and MASTER_PORT are not set; {HOW}")),
        Launcher::Crosstie => Err(format!("CROSSTIE_RANK is set, but no rendezvous; {HOW}")),
    }
}

fn told(get: Environment) -> Result<Option<Meeting>, Failure> {
    if let Some(text) = get("CROSSTIE_RENDEZVOUS") {
        let wrong = || format!("CROSSTIE_RENDEZVOUS={text} is not HOST:PORT");
        let (host, port) = host_port(&text).ok_or_else(wrong)?;
        return Ok(Some(Meeting { hosts: vec![host], port, key: fnv1a(text.as_bytes()) }));
    }
    let (host, port) = match (get("MASTER_ADDR"), get("MASTER_PORT")) {
        (Some(host), Some(port)) if !host.is_empty() => (host, port),
        (Some(_), None) => return Err(format!("MASTER_ADDR is set but MASTER_PORT is not; {HOW}")),
        _ => return Ok(None),
    };
    let wrong = || format!("MASTER_PORT={port} is not a port from 1 to 65535");
    let number = port.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
    let run = format!("{host}:{port} {}", get("TORCHELASTIC_RUN_ID").unwrap_or_default());
    // torchrun's agent listens on its port itself, and says so; rank 0 then takes another.
    let taken = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|said| said == "True");
    let port = if taken { port_of(&run) } else { number };
    Ok(Some(Meeting { hosts: vec![host], port, key: fnv1a(run.as_bytes()) }))
}

/// `host:port`, `1.2.3.4:port` or `[::1]:port`.
pub fn host_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.trim().rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let host = match bare {
        Some(host) => host,
        None if host.contains(':') => return None,
        None => host,
    };
    let port = port.parse::<u16>().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then(|| (host.to_string(), port))
}

/// mpirun tells its own addresses: rank 0 is on its host, or else the user must say where.
fn open_mpi(size: u32, get: Environment) -> Result<Meeting, Failure> {
    let job = get("PMIX_NAMESPACE").or_else(|| get("OMPI_MCA_ess_base_jobid"));
    let missing = |name| format!("mpirun has not set {name}; {HOW}");
    let job = job.ok_or_else(|| missing("PMIX_NAMESPACE"))?;
    let local = number(get, "OMPI_COMM_WORLD_LOCAL_SIZE", u64::from(RANKS_MAX))?;
    let hosts = if local == Some(u64::from(size)) {
        vec![String::from("127.0.0.1")]
    } else {
        let uri = ["OMPI_MCA_orte_hnp_uri", "PMIX_SERVER_URI41", "PMIX_SERVER_URI4"];
        let uri = uri.iter().find_map(|name| get(name)).unwrap_or_default();
        uri_hosts(&uri)
    };
    if hosts.is_empty() {
        return Err(missing("OMPI_MCA_orte_hnp_uri"));
    }
    Ok(Meeting { hosts, port: port_of(&job), key: fnv1a(job.as_bytes()) })
}

/// The addresses of `678.0;tcp://10.0.0.1,10.1.0.1:53765;tcp6://[fd00::2]:57433` that another host
/// may reach.
fn uri_hosts(uri: &str) -> Vec<String> {
    let mut hosts = Vec::new();
    for part in uri.split(';') {
        let Some((_, rest)) = part.split_once("://") else { continue };
        let Some((names, _)) = rest.rsplit_once(':') else { continue };
        let names = names.split(',').map(|name| name.trim_matches(['[', ']']).to_string());
        hosts.extend(names.filter(|name| !(name.starts_with("127.") || name == "::1")));
    }
    hosts
}

/// Rank 0 is a task of the step's first host.
fn slurm(get: Environment) -> Result<Meeting, Failure> {
    let missing = |name| format!("srun has not set {name}; {HOW}");
    let job = get("SLURM_JOB_ID").or_else(|| get("SLURM_JOBID"));
    let job = job.ok_or_else(|| missing("SLURM_JOB_ID"))?;
    let step = get("SLURM_STEP_ID").ok_or_else(|| missing("SLURM_STEP_ID"))?;
    let nodes = number(get, "SLURM_STEP_NUM_NODES", u64::from(u32::MAX))?;
    let listed = get("SLURM_STEP_NODELIST").and_then(|list| first_host(&list));
    let host = match nodes {
        Some(1) => Some(String::from("127.0.0.1")),
        _ => listed.or_else(|| get("SLURM_LAUNCH_NODE_IPADDR")),
    };
    let host = host.ok_or_else(|| missing("SLURM_STEP_NODELIST"))?;
    let name = format!("slurm {job}.{step}");
    Ok(Meeting { hosts: vec![host], port: port_of(&name), key: fnv1a(name.as_bytes()) })
}

/// The first name of a list such as `gpu[03-07,12]-ib,login1`.
pub fn first_host(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list.trim();
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..end]);
        if !rest[end..].starts_with('[') {
            break;
        }
        let (inside, after) = rest[end + 1..].split_once(']')?;
        name.push_str(inside.split([',', '-']).next()?);
        rest = after;
    }
    (!name.is_empty()).then_some(name)
}

fn port_of(name: &str) -> u16 {
    let count = u64::from(PORTS.end - PORTS.start);
    PORTS.start + (fnv1a(name.as_bytes()) % count) as u16
}
