# Part of `run`, which sources it: the packages that are needed, and the guest's kernel, taken out
# of Debian's package without installing it.

readonly kernel_package=${VM_KERNEL:-linux-image-amd64}
readonly kernel=$cache/$kernel_package

# iproute2 holds rdma(8); ibverbs-utils says what devices there are, and the two after it let the
# host's programs find them.
readonly packages=(qemu-system-x86 busybox-static kmod cpio xz-utils iproute2
    ibverbs-utils ibverbs-providers librdmacm1)
# What the guest loads, in this order; what these depend on comes with them.
readonly boot_modules=(virtio_pci virtio_console 9pnet_virtio 9p overlay)
readonly rdma_modules=(dummy veth sch_netem crc32_generic ib_uverbs rdma_ucm rdma_rxe)
readonly siw_modules=(crc32c_generic libcrc32c)

# ---------------------------------------------------------------- packages

# as_root COMMAND...: fails where this user cannot become root without being asked.
as_root() {
    if ((EUID == 0)); then "$@"; else sudo -n -- "$@"; fi
}

# with_apt COMMAND...: runs it; if that fails, once more on fresh package lists.
with_apt() {
    command -v apt-get >/dev/null || die "no apt-get here: this needs Debian or a relative of it"
    "$@" >"$cache/apt.log" 2>&1 && return 0
    { as_root apt-get -q update && "$@"; } >>"$cache/apt.log" 2>&1 && return 0
    tail -n 5 "$cache/apt.log" >&2
    return 1
}

is_installed() {
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# need_packages PACKAGE...: installs those that are not.
need_packages() {
    local missing=() package
    for package; do is_installed "$package" || missing+=("$package"); done
    ((${#missing[@]})) || return 0
    note "installing ${missing[*]}"
    with_apt as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -y --no-install-recommends install "${missing[@]}" ||
        die "missing and not installed: ${missing[*]} (see $cache/apt.log; it takes root, or a" \
            "sudo that does not ask)"
}

# download PACKAGE DIRECTORY: puts the package, not installed, into the empty directory.
download() {
    note "downloading $1"
    mkdir -p "$2" && cd "$2" || die "cannot write in $2"
    # As root, apt would warn that its own user may not write here.
    with_apt apt-get -q -o APT::Sandbox::User=root download "$1" || die "could not download $1"
    cd - >/dev/null || exit
}

# ---------------------------------------------------------------- kernel

# number FILE OFFSET BYTES: the little-endian number that stands there.
number() { od -An -v -t "u$3" -j "$2" -N "$3" -- "$1" | tr -d ' \n'; }

# unpack_kernel BZIMAGE ELF: takes the ELF kernel out of a bzImage, which an emulated CPU would need
# seconds to unpack. The offsets are those of the kernel's x86 boot protocol: setup_sects,
# payload_offset, payload_length.
unpack_kernel() {
    local begin length unpack
    begin=$((($(number "$1" 0x1f1 1) + 1) * 512 + $(number "$1" 0x248 4)))
    length=$(number "$1" 0x24c 4)
    case $(od -An -t x1 -j "$begin" -N 4 -- "$1" | tr -d ' \n') in
        fd377a58) unpack=(xz -dc --single-stream) ;;
        28b52ffd) unpack=(zstd -dcq); need_packages zstd ;;
        02214c18) unpack=(lz4 -dcq); need_packages lz4 ;;
        1f8b*) unpack=(gzip -dcq) ;;
        *) die "do not know how the kernel in $1 is packed" ;;
    esac
    # Behind the packed kernel stands its length, 4 bytes that an unpacker may object to.
    tail -c "+$((begin + 1))" -- "$1" | head -c "$length" | "${unpack[@]}" >"$2" 2>/dev/null
    [[ $(head -c 4 -- "$2" | tr -d '\177') == ELF ]] || die "could not unpack the kernel in $1"
}

# module_text FILE: a module, unpacked.
module_text() {
    case $1 in
        *.ko) cat -- "$1" ;;
        *.ko.xz) xz -dc -- "$1" ;;
        *.ko.zst) zstd -dcq -- "$1" ;;
        *) gzip -dc -- "$1" ;;
    esac
}

# take_modules TREE RELEASE OUT LIST MODULE...: copies the modules, and those that they depend on,
# from TREE to OUT/modules, and writes their names to OUT/LIST in loading order.
take_modules() {
    local tree=$1 release=$2 out=$3 list=$4 module steps verb file name
    shift 4
    for module; do
        steps=$(modprobe -d "$tree" -S "$release" --show-depends "$module" 2>&1) ||
            die "$kernel_package has no module $module (cloud kernels leave rdma_rxe out)"
        while read -r verb file _; do
            [[ $verb == insmod ]] || continue # builtin: nothing to load
            name=${file##*/} name=${name%%.ko*}.ko
            module_text "$file" >"$out/modules/$name" || die "could not copy $file"
            printf '%s\n' "$name"
        done <<<"$steps"
    done | awk '!seen[$0]++' >"$out/$list" || exit "$status_vm"
}

# The package of the day that linux-image-amd64 and its like only depend on.
real_kernel_package() {
    apt-cache depends --important "$kernel_package" 2>/dev/null | awk '
        $1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; found = 1; exit }
        END { exit !found }'
}

# Fills $kernel: vmlinux, modules/*.ko, boot.list, rdma.list, siw.list, release, version.
fetch_kernel() {
    local package tree=$work/tree new=$work/new release
    package=$(real_kernel_package) || package=$kernel_package
    if [[ $package == "$kernel_package" ]] && ! apt-cache show "$package" >/dev/null 2>&1; then
        as_root apt-get -q update >"$cache/apt.log" 2>&1
        package=$(real_kernel_package) || package=$kernel_package
    fi
    download "$package" "$work/kernel"
    note "unpacking $package"
    mkdir -p "$tree" "$new/modules"
    dpkg-deb --fsys-tarfile "$work"/kernel/*.deb | tar -x -C "$tree" --wildcards \
        --exclude '*/drivers/gpu/*' --exclude '*/drivers/media/*' --exclude '*/sound/*' \
        './boot/vmlinuz-*' '*/lib/modules/*' || die "could not unpack $package"
    [[ -d $tree/lib ]] || ln -s usr/lib "$tree/lib"
    release=$(ls "$tree/lib/modules")
    depmod -b "$tree" "$release" 2>"$cache/depmod.log" ||
        die "depmod failed (see $cache/depmod.log)"
    unpack_kernel "$tree/boot/vmlinuz-$release" "$new/vmlinux"
    take_modules "$tree" "$release" "$new" boot.list "${boot_modules[@]}"
    take_modules "$tree" "$release" "$new" rdma.list "${rdma_modules[@]}"
    take_modules "$tree" "$release" "$new" siw.list "${siw_modules[@]}"
    printf '%s\n' "$release" >"$new/release"
    dpkg-deb -f "$work"/kernel/*.deb Version >"$new/version"
    # Renamed at the end, so that an interrupted copy is never taken for the whole.
    { rm -rf -- "$kernel.new" && mv -- "$new" "$kernel.new" && rm -rf -- "$kernel" &&
        mv -- "$kernel.new" "$kernel"; } || die "cannot write $kernel"
    note "cached the kernel $release"
}

# Debian's kernels leave the siw driver out, but their sources have it.
build_siw() {
    local release version source at=drivers/infiniband/sw/siw dir=$work/siw
    release=$(<"$kernel/release") version=$(<"$kernel/version")
    source=linux-source-${release%%.*}.$(cut -d . -f 2 <<<"$release")
    need_packages make gcc "linux-headers-$release"
    download "$source=$version" "$work/source"
    note "building siw"
    mkdir -p "$dir"
    dpkg-deb --fsys-tarfile "$work"/source/*.deb |
        tar -xO --wildcards './usr/src/linux-source-*.tar.xz' | xz -dc |
        tar -x -C "$dir" --strip-components 1 --wildcards "*/$at/*" ||
        die "could not unpack $source"
    make -C "/usr/src/linux-headers-$release" M="$dir/$at" CONFIG_RDMA_SIW=m modules \
        >"$cache/siw.log" 2>&1 || die "could not build siw (see $cache/siw.log)"
    mv -- "$dir/$at/siw.ko" "$kernel/modules/siw.ko.new" && mv -- "$kernel/modules/siw.ko"{.new,}
}

# Everything that a guest needs, from Debian or from an earlier run.
fill_cache() {
    local lock
    need_packages "${packages[@]}"
    exec {lock}>"$cache/lock"
    flock "$lock" # of several runs at once, one fills the cache
    [[ $refresh ]] && rm -rf -- "$kernel"
    [[ -s $kernel/version ]] || fetch_kernel
    [[ ! $siw || -s $kernel/modules/siw.ko ]] || build_siw
    exec {lock}>&-
}
