//! The device library without a GPU: `tests/gpu/device.cu` compiled by a C++ compiler, with a
//! thread for each of a kernel's, over the test double of the CUDA driver. And the header by nvcc,
//! where there is one.

#[path = "../../tests/cuda_support/mod.rs"]
mod cuda_support;

use cuda_support::library_path;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../");

fn tmp(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn includes() -> [String; 4] {
    ["device", "c-api/include", "examples-c", "tests/gpu"].map(|folder| format!("-I{ROOT}{folder}"))
}

/// The program for the CPU, built once for this test program.
fn program() -> PathBuf {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    BUILT.get_or_init(build).clone()
}

fn build() -> PathBuf {
    let (object, out) = (tmp("device.o"), tmp("device"));
    let archive = std::env::current_exe().unwrap().with_file_name("libcrosstie_c.a");
    let libraries = std::fs::read_to_string(format!("{ROOT}packaging/native-libs")).unwrap();
    let mut compile = Command::new("c++");
    compile.args(["-x", "c++", "-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
    compile.args(["-Wno-missing-field-initializers", "-DXTIE_ON_CPU", "-c"]).args(includes());
    done(compile.arg(format!("{ROOT}tests/gpu/device.cu")).arg("-o").arg(&object));
    let mut link = Command::new("c++");
    link.arg(&object).arg(archive).args(libraries.split_whitespace()).arg("-o").arg(&out);
    done(&mut link);
    out
}

fn done(command: &mut Command) -> Output {
    let done = command.output().expect("a C++ compiler");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    done
}

/// What the program says, which finds everything right.
fn said(arguments: &[&str], settings: &[(&str, &str)]) -> String {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "600"]).arg(program()).args(arguments);
    command.env("LD_LIBRARY_PATH", library_path()).env_remove("CUDA_VISIBLE_DEVICES");
    let done = command.envs(settings.iter().copied()).output().expect("the program");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}\n{text}\n{errors}", done.status);
    assert!(!text.contains("WRONG"), "{text}");
    text
}

/// Rows of the table: cases of device.cu on the CPU.
const ROWS: usize = 36;

fn all_rows(arguments: &[&str], settings: &[(&str, &str)]) {
    let text = said(arguments, settings);
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), ROWS, "{text}");
}

#[test]
fn functions_do_what_the_page_says_between_two_gpus() {
    all_rows(&[], &[("CUDA_DOUBLE_DELAY_NS", "2000")]);
}

#[test]
fn functions_do_what_the_page_says_on_one_gpu() {
    all_rows(&[], &[("CUDA_DOUBLE_DEVICES", "1")]);
}

#[test]
fn functions_do_what_the_page_says_between_two_hosts() {
    all_rows(&["hosts"], &[]);
}

#[test]
fn a_wait_ends_when_a_rank_has_ended() {
    let text = said(&["kill"], &[]);
    assert!(text.contains("ok    a rank that ends"), "{text}");
}

/// A compiler for GPUs: `NVCC`, or nvcc on the path.
fn nvcc() -> Option<String> {
    let name = std::env::var("NVCC").unwrap_or("nvcc".into());
    let found = Command::new(&name).arg("--version").output();
    found.is_ok_and(|done| done.status.success()).then_some(name)
}

/// Compiles a program of `tests/gpu` or the example for an architecture, to PTX.
fn for_gpu(nvcc: &str, source: &str, arch: &str, headers: &[String]) -> Output {
    let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
    let mut compile = Command::new(nvcc);
    compile.args(["-std=c++17", "-Wno-deprecated-gpu-targets", "-ptx", "-arch"]).arg(arch);
    compile.args(includes()).args(headers).arg(format!("{ROOT}{source}"));
    compile.arg("-o").arg(tmp(&format!("{name}-{arch}.ptx"))).output().unwrap()
}

#[test]
fn header_compiles_for_gpus_where_there_is_nvcc() {
    let Some(nvcc) = nvcc() else {
        println!("SKIP: no nvcc on the path, nor by NVCC");
        return;
    };
    for source in ["tests/gpu/device.cu", "examples-c/gpu_kernel_put.cu"] {
        let done = for_gpu(&nvcc, source, "compute_90", &[]);
        assert!(done.status.success(), "{source}: {}", String::from_utf8_lossy(&done.stderr));
        // CUDA 13 has no 7.0 any more
        let oldest = ["compute_70", "compute_75"];
        let is_fine = |arch: &&str| for_gpu(&nvcc, source, arch, &[]).status.success();
        assert!(oldest.iter().any(is_fine), "{source} for {oldest:?}");
    }
}

#[test]
fn functions_of_doca_compile_where_there_are_nvcc_and_headers() {
    let headers = std::env::var("XTIE_NCCL_HEADERS");
    let (Some(nvcc), Ok(headers)) = (nvcc(), headers) else {
        println!("SKIP: no nvcc, or XTIE_NCCL_HEADERS is not set (scripts/test nccl_headers)");
        return;
    };
    for release in ["2.30.4", "2.30.7", "2.32.3"] {
        let folder = Path::new(&headers).join(release).join("nvidia/nccl/include");
        assert!(folder.is_dir(), "XTIE_NCCL_HEADERS has no {}", folder.display());
        let include = [format!("-I{}", folder.display())];
        let done = for_gpu(&nvcc, "tests/gpu/doca.cu", "compute_90", &include);
        assert!(done.status.success(), "{release}: {}", String::from_utf8_lossy(&done.stderr));
    }
}
