# Shared by the scripts beside this file: `. "$(dirname "$0")/lib.sh"`.
# Afterwards the working directory is the project's root and $target is cargo's target folder.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}
tools=$target/tools
export PATH="$PATH:$tools/bin:$HOME/.cargo/bin"
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}
nightly=${NIGHTLY:-nightly}
# Another version lays the header out differently.
cbindgen_version=0.29.0
# Below a PREFIX: what install wrote, for uninstall.
installed=share/doc/crosstie/installed

note() { printf '%s\n' "$*" >&2; }
die() { note "error: $*"; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

# The packages of Debian and Ubuntu that bring a program.
package_of() {
    case $1 in
        cc | gcc) echo gcc libc6-dev ;;
        c++ | g++) echo g++ ;;
        pkg-config) echo pkg-config ;;
        ip | tc) echo iproute2 ;;
        mpirun) echo openmpi-bin ;;
        dot) echo graphviz ;;
        nm | ld | readelf | size | objcopy | ar) echo binutils ;;
        *) echo "$1" ;;
    esac
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    has apt-get && { [ "$(id -u)" = 0 ] || { has sudo && sudo -n true 2>/dev/null; }; }
}

apt_install() {
    local quiet=$target/apt.log
    mkdir -p "$target"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" \
        >"$quiet" 2>&1 && return 0
    # A fresh image has no package lists.
    as_root apt-get -qq update >>"$quiet" 2>&1 || true
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" \
        >>"$quiet" 2>&1
}

# want PROGRAM...: installs what is missing where that is allowed. False when something is still
# missing; $missing then names it.
want() {
    local program packages=()
    missing=""
    for program in "$@"; do
        has "$program" || packages+=($(package_of "$program"))
    done
    if [ ${#packages[@]} -gt 0 ] && may_install; then
        note "installing: ${packages[*]}"
        # One by one if not together: a name may not be a package everywhere.
        apt_install "${packages[@]}" || for program in "${packages[@]}"; do
            apt_install "$program" || true
        done
        hash -r
    fi
    for program in "$@"; do
        has "$program" || missing="$missing $program"
    done
    [ -z "$missing" ]
}

# need PROGRAM...: as `want`, and ends with one line that says what to install.
need() {
    want "$@" && return 0
    local program packages=()
    for program in $missing; do packages+=($(package_of "$program")); done
    die "missing:$missing (Debian, Ubuntu: apt-get install ${packages[*]})"
}

# The minimum of Cargo.toml, and rustup's own components where they were left out.
need_rust() {
    local want_version have
    want_version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    has cargo || die "Rust is missing: install Rust $want_version or newer from https://rustup.rs"
    have=$(rustc --version | cut -d' ' -f2)
    [ "$(printf '%s\n' "$want_version" "$have" | sort -V | head -1)" = "$want_version" ] ||
        die "Rust $have is too old: $want_version or newer is needed (rustup update stable)"
}

# want_component COMMAND COMPONENT: a part of the stable toolchain, such as rustfmt.
want_component() {
    cargo "$1" --version >/dev/null 2>&1 && return 0
    has rustup && rustup --quiet component add "$2" >/dev/null 2>&1 &&
        cargo "$1" --version >/dev/null 2>&1
}

# want_nightly COMPONENT...: a nightly toolchain with these parts, for miri, fuzzing, sanitizers.
want_nightly() {
    local part absent=()
    has rustup || return 1
    if ! rustc +"$nightly" --version >/dev/null 2>&1; then
        note "installing: Rust $nightly"
        rustup --quiet toolchain install "$nightly" --profile minimal >/dev/null 2>&1 || return 1
    fi
    for part in "$@"; do
        rustup +"$nightly" component list 2>/dev/null | grep -q "^$part.*(installed)" ||
            absent+=("$part")
    done
    [ ${#absent[@]} -eq 0 ] && return 0
    note "installing: Rust $nightly ${absent[*]}"
    rustup --quiet component add "${absent[@]}" --toolchain "$nightly" >/dev/null 2>&1
}

# has_tool COMMAND VERSION: whether a program is there at that version, on PATH or in the target
# folder.
has_tool() {
    local said
    said=$("$1" --version 2>/dev/null || true)
    case "$said" in *" $2") return 0 ;; esac
    export PATH="$tools/bin:$PATH"
    hash -r
    said=$("$1" --version 2>/dev/null || true)
    case "$said" in *" $2") return 0 ;; esac
    return 1
}

# want_tool COMMAND CRATE VERSION: a program from crates.io at one version, kept in the target
# folder, so that another version on PATH is neither used nor replaced.
want_tool() {
    ! has_tool "$1" "$3" || return 0
    note "installing: $2 $3 (a minute or more)"
    # Its own target folder: RUSTFLAGS and profiles of ours are none of its business.
    env -u RUSTFLAGS CARGO_TARGET_DIR="$target/tools-build" \
        cargo install --quiet --locked --root "$tools" "$2" --version "$3" &&
        rm -rf "$target/tools-build"
}

# seal ARCHIVE INTO PATTERN: one object of all of an archive, of whose symbols those that match alone
# are seen by what it is linked with. Every Rust library brings the language's own beside (such as
# rust_eh_personality), and two that show them cannot be parts of one program.
seal() {
    local object=$target/sealed.o
    # Groups end here: what keeps one of several copies goes by names that nobody sees any more.
    ld -r --whole-archive --force-group-allocation -o "$object" "$1"
    # Bitcode of the compiler's own library, which tools take for the whole when it is joined; and
    # debugging information, which the language's own libraries have whatever the profile says.
    objcopy --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd \
        --wildcard --keep-global-symbol="$3" "$object"
    rm -f "$2"
    ar rcs "$2" "$object"
    rm -f "$object"
}

# without_builder_paths: what cargo builds from here on names no folder of the machine that it is
# built on. Places of panics in these sources are relative anyway (src/host/endpoint.rs).
without_builder_paths() {
    local flags=${CARGO_ENCODED_RUSTFLAGS:-} from sysroot hash
    [ -n "$flags" ] || flags=$(printf '%s' "${RUSTFLAGS:-}" | tr -s ' ' '\037')
    sysroot=$(rustc --print sysroot)
    hash=$(rustc -vV | sed -n 's/^commit-hash: //p')
    # The last that fits counts.
    for from in "$HOME=home" "${CARGO_HOME:-$HOME/.cargo}=cargo" "$sysroot=rust" \
        "$sysroot/lib/rustlib/src/rust=/rustc/$hash" "$root=crosstie"; do
        [ "${from%%=*}" != / ] || continue
        flags+=${flags:+$'\037'}--remap-path-prefix=$from
    done
    export CARGO_ENCODED_RUSTFLAGS=$flags
}

version() {
    sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1
}
