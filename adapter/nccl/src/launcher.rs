//! What launchers say of the ranks.

use crosstie::memory::Variables;

/// All ranks and those of this host, or all hosts, as launchers say them. The launcher that stands
/// first decides: it was started by those that come later.
const COUNTS: [(&str, Option<&str>); 4] = [
    ("WORLD_SIZE", Some("LOCAL_WORLD_SIZE")),
    ("OMPI_COMM_WORLD_SIZE", Some("OMPI_COMM_WORLD_LOCAL_SIZE")),
    ("PMI_SIZE", Some("MPI_LOCALNRANKS")),
    ("SLURM_STEP_NUM_NODES", None),
];

/// Whether the ranks run on several hosts, and what says so; `None`: nothing says where they run.
fn said(variables: &Variables) -> Option<(bool, String)> {
    let count = |name: &str| variables.text(name)?.trim().parse::<u64>().ok();
    COUNTS.into_iter().find_map(|(all, here)| {
        let (whole, own) = (count(all)?, here.map_or(Some(1), count)?);
        let own_said = here.map_or(String::new(), |here| format!(", {here}={own}"));
        Some((whole > own, format!("{all}={whole}{own_said}")))
    })
}

/// Whether the launcher says that the ranks run on several hosts.
pub fn several_hosts(variables: &Variables) -> bool {
    said(variables).is_some_and(|(several, _)| several)
}

/// What says that all ranks run on this host.
pub fn one_host(variables: &Variables) -> Option<String> {
    let (several, said) = said(variables)?;
    (!several).then(|| format!("all ranks run on this host: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn variables(all: &[(&str, &str)]) -> Variables {
        all.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect()
    }

    #[test]
    fn ranks_of_several_hosts_are_known_by_their_launcher() {
        let several = |all: &[(&str, &str)]| one_host(&variables(all)).is_none();
        assert!(several(&[("WORLD_SIZE", "16"), ("LOCAL_WORLD_SIZE", "8")]));
        let one = variables(&[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]);
        assert!(one_host(&one).is_some_and(|why| why.contains("OMPI_COMM_WORLD_LOCAL_SIZE=2")));
        assert!(several(&[("WORLD_SIZE", "16")]), "half of it says nothing");
        assert!(several(&[("SLURM_NTASKS", "16"), ("SLURM_STEP_NUM_NODES", "2")]));
        assert!(!several(&[("SLURM_NTASKS", "8"), ("SLURM_STEP_NUM_NODES", "1")]));
        // mpirun on one host of an allocation of two
        let inner = [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
        let outer = [("SLURM_STEP_NUM_NODES", "2")];
        assert!(!several(&[&inner[..], &outer].concat()));
    }
}
