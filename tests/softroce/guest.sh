#!/usr/bin/env bash
# What a guest kernel needs, for the scripts that boot one: tools, a kernel of Debian's, the
# first files, the emulator. Sourced; they set `cache`, `out`, `kernel`, `modules`, `memory_mib`,
# `processors` and `clock`.
# shellcheck disable=SC2154
set -euo pipefail

# command:package, for those that a guest needs.
guest_tools=(qemu-system-x86_64:qemu-system-x86 busybox:busybox-static zstd:zstd xz:xz-utils
    depmod:kmod rdma:iproute2 dpkg:dpkg setpriv:util-linux mkfs.ext4:e2fsprogs)
guest=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/guest
accel='' cpu=''

# Prints the header of this file, without the first line.
usage() {
    local line
    while read -r line && [[ $line == "#"* ]]; do
        [[ $line == "#!"* ]] || echo "${line:2}"
    done <"$0"
}

fail() { echo "$0: $*" >&2 && exit 1; }
skip() { echo "skipped: $*" && exit 77; }

# Installs the packages of missing commands, given as command:package.
need() {
    local entry missing=()
    for entry in "$@"; do
        command -v "${entry%%:*}" >/dev/null || missing+=("${entry##*:}")
    done
    ((${#missing[@]} == 0)) || install_packages "${missing[@]}"
}

install_packages() {
    command -v apt-get >/dev/null || skip "no apt-get to install: $*"
    [[ $(id -u) == 0 ]] || skip "not root, and these packages are missing: $*"
    echo "==> installing $*"
    export DEBIAN_FRONTEND=noninteractive
    local quiet=(-qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=3)
    { timeout 300 apt-get "${quiet[@]}" update \
        && timeout 900 apt-get "${quiet[@]}" install -y --no-install-recommends "$@"; } \
        >"$cache/apt.log" 2>&1 || skip "apt-get cannot install $*: $(tail -n 1 "$cache/apt.log")"
}

# ---- The kernel: fetched once, kept as an image and a folder of modules.

# Of other modules it is another archive.
module_archive() {
    echo "$cache/modules-$kernel-$(cksum <<<"${modules[*]}" | cut -d ' ' -f 1).cpio"
}

make_kernel() {
    local image=$cache/vmlinux-$kernel archive tree deb version file
    archive=$(module_archive)
    [[ -s $image && -s $archive ]] && return
    tree=$(mktemp -d "$cache/tree.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$tree'" EXIT
    fetch_kernel "$tree"
    for deb in "$tree"/*.deb; do dpkg -x "$deb" "$tree/root"; done
    mkdir -p "$tree/initrd/lib/modules"
    [[ -d $tree/root/lib/modules ]] || mv "$tree/root/usr/lib" "$tree/root/lib"
    version=$(ls "$tree/root/lib/modules")
    file=$(find "$tree/root" -name 'vmlinuz*' -type f | head -n 1)
    [[ -n $file ]] || fail "no kernel image in $(echo "$tree"/*.deb)"
    extract_image "$file" "$image.new"
    depmod -b "$tree/root" "$version"
    local folder=$tree/root/lib/modules/$version to=$tree/initrd/lib/modules/$version
    for file in $(needed_modules "$tree/root" "$version"); do
        unpack "$file" "$to/${file#"$folder/"}"
    done
    cp "$folder"/modules.{builtin,order} "$to/"
    cp "$folder/modules.builtin.modinfo" "$to/" 2>/dev/null || true
    depmod -b "$tree/initrd" "$version"
    pack "$tree/initrd" >"$archive.new"
    # Both or neither: the image last, because it is looked for first.
    rm -f "$cache/modules-$kernel"*.cpio
    mv "$archive.new" "$archive"
    mv "$image.new" "$image"
    rm -rf "$tree"
    trap - EXIT
    echo "    kernel $version"
}

# Copies a module, unpacked: busybox loads no packed ones.
unpack() {
    mkdir -p "$(dirname "$2")"
    case $1 in
        *.xz) xz -dc "$1" >"${2%.xz}" ;;
        *.zst) zstd -dqc "$1" >"${2%.zst}" ;;
        *) cp "$1" "$2" ;;
    esac
}

# Fetches the newest package of this kernel, with lists of our own, so that neither the
# machine's release nor its configuration matters.
fetch_kernel() {
    local tree=$1 suite pattern key=/usr/share/keyrings/debian-archive-keyring.gpg
    local from=http://deb.debian.org/debian
    case $kernel in
        6.1) suite=bookworm pattern='^linux-image-6\.1\.[0-9.+-]*-amd64$' ;;
        6.12)
            suite=bookworm-security from=http://deb.debian.org/debian-security
            pattern='^linux-image-6\.12\.[0-9]+\+deb12-amd64$'
            ;;
        7.2) suite=trixie-backports pattern='^linux-image-7\.2[0-9.+a-z~-]*-amd64$' ;;
        *) fail "no kernel $kernel; there are 6.1, 6.12 and 7.2" ;;
    esac
    command -v apt-get >/dev/null || skip "no apt-get to fetch a kernel with"
    [[ -e $key ]] || install_packages debian-archive-keyring
    echo "==> fetching kernel $kernel ($suite)"
    mkdir -p "$tree/apt/lists/partial" "$tree/apt/cache/archives/partial"
    echo "deb [signed-by=$key arch=amd64] $from $suite main" >"$tree/apt/sources.list"
    local apt=(-qq -o "Dir::Etc::SourceList=$tree/apt/sources.list" -o Dir::Etc::SourceParts=-
        -o "Dir::State::Lists=$tree/apt/lists" -o "Dir::Cache=$tree/apt/cache"
        -o APT::Architecture=amd64 -o APT::Sandbox::User=root -o Acquire::Retries=3)
    timeout 300 apt-get "${apt[@]}" update >"$cache/apt.log" 2>&1 \
        || skip "apt-get cannot reach $from: $(tail -n 1 "$cache/apt.log")"
    local names package part wanted=()
    names=$(apt-cache "${apt[@]}" pkgnames linux-)
    package=$(grep -E "$pattern" <<<"$names" | grep -Ev -- '-(cloud|rt|dbg|unsigned)-' \
        | sort -V | tail -n 1)
    [[ -n $package ]] || skip "$suite has no kernel $kernel"
    # Newer kernels come in parts, of which the image only names the others.
    for part in image base binary modules; do
        part=linux-$part-${package#linux-image-}
        ! grep -qxF -- "$part" <<<"$names" || wanted+=("$part")
    done
    (cd "$tree" && timeout 900 apt-get "${apt[@]}" download "${wanted[@]}") \
        >>"$cache/apt.log" 2>&1 \
        || skip "cannot fetch ${wanted[*]}: $(tail -n 1 "$cache/apt.log")"
}

# The uncompressed kernel in a bzImage: QEMU starts it directly, which is quicker than letting
# the guest unpack it. Numbers are at the offsets that the boot protocol gives.
extract_image() {
    local setup start length
    setup=$(number "$1" 497 1)
    start=$(((${setup/#0/4} + 1) * 512 + $(number "$1" 584 4)))
    length=$(number "$1" 588 4)
    tail -c "+$((start + 1))" "$1" | head -c "$length" >"$2.packed" || true
    case $(head -c 4 "$2.packed" | od -An -tx1 | tr -d ' ') in
        28b52ffd) zstd -dqc "$2.packed" >"$2" 2>/dev/null || true ;;
        fd377a58) xz -dc --single-stream "$2.packed" >"$2" 2>/dev/null || true ;;
        1f8b*) gzip -dc "$2.packed" >"$2" 2>/dev/null || true ;;
        *) fail "$1 is packed in a way we do not know" ;;
    esac
    rm "$2.packed"
    # The length of the payload follows it, which unpackers complain about: look at the result.
    [[ $(head -c 4 "$2" | od -An -tx1 | tr -d ' ') == 7f454c46 ]] || fail "no kernel in $1"
}

number() { od -An -tu"$3" -j "$2" -N "$3" "$1" | tr -d ' '; }

needed_modules() {
    local module
    for module in "${modules[@]}"; do
        modprobe -d "$1" -S "$2" -D "$module" 2>/dev/null || true
    done | awk '$1 == "insmod" { print $2 }' | sort -u
}

pack() { (cd "$1" && find . | busybox cpio -o -H newc 2>/dev/null); }

# The first files of the guest, over the modules: an initramfs may consist of several archives.
make_initrd() {
    local tree applet
    tree=$(mktemp -d "$cache/init.XXXXXX")
    mkdir -p "$tree"/{bin,sbin,proc,sys,dev}
    cp "$(command -v busybox)" "$tree/bin/busybox"
    for applet in sh mount mkdir chmod chroot modprobe poweroff echo; do
        ln -s busybox "$tree/bin/$applet"
    done
    # The kernel itself calls it, for crc32: without it no rxe device can be made.
    ln -s ../bin/busybox "$tree/sbin/modprobe"
    install -m 755 "$guest/init" "$tree/init"
    { cat "$(module_archive)" && pack "$tree"; } >"$out/initrd"
    rm -rf "$tree"
}

# ---- The emulator.

# KVM only where the processor says that it can: elsewhere kernels hang on it. An emulated one has
# no vectors but SSE2: BLAKE3 takes the widest it finds, and emulated AVX2 takes it thrice as long.
find_accel() {
    accel=tcg,thread=multi,tb-size=512 cpu=qemu64
    ! grep -qwE 'vmx|svm' /proc/cpuinfo || [[ ! -w /dev/kvm ]] || accel=kvm cpu=max
}

# Runs the guest: kernel and initrd, the host's files to read, $out to write, and more arguments.
qemu() {
    local share=security_model=none
    exec qemu-system-x86_64 -M q35 -accel "$accel" -cpu "$cpu" -m "$memory_mib" -smp "$processors" \
        -nodefaults -no-user-config -display none -no-reboot \
        -serial "file:$out/console" -kernel "$cache/vmlinux-$kernel" -initrd "$out/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on $clock no_timer_check maxcpus=1" \
        -fsdev "local,id=host,path=/,$share,readonly=on,multidevs=remap" \
        -device virtio-9p-pci,fsdev=host,mount_tag=host \
        -fsdev "local,id=out,path=$out,$share" -device virtio-9p-pci,fsdev=out,mount_tag=out \
        -device virtio-rng-pci "$@"
}
