package guest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

// kernelLayout is part of the name of unpacked kernels: it changes when what is kept of a package
// changes.
const kernelLayout = "1"

// A kernel is an unpacked kernel.
type kernel struct {
	name    string // package and version, or where it was found
	image   string // the uncompressed kernel, for qemu
	modules string // the directory with modules.builtin and kernel/
}

// metapackages depend on the current kernel of a distribution.
var metapackages = []string{"linux-image-amd64", "linux-image-cloud-amd64"}

// keptModules are the directories of modules that are unpacked: some 150 MiB of 400.
var keptModules = []string{"arch/", "block/", "crypto/", "fs/configfs/", "lib/", "net/", "virt/", "drivers/base/",
	"drivers/block/",
	"drivers/char/", "drivers/dax/", "drivers/dca/", "drivers/dma", "drivers/firmware/", "drivers/i2c/",
	"drivers/infiniband/",
	"drivers/iommu/", "drivers/net/ethernet/", "drivers/net/phy/", "drivers/net/vmxnet3/", "drivers/nvme/",
	"drivers/pps/",
	"drivers/ptp/", "drivers/uio/", "drivers/vfio/", "drivers/vhost/", "drivers/virtio/"}

func keepModule(name string) bool {
	for _, dir := range keptModules {
		if strings.HasPrefix(name, dir) {
			return true
		}
	}
	// drivers/net itself, without its other directories (wireless alone is 50 MiB).
	return path.Dir(name) == "drivers/net"
}

// findKernel returns a kernel that can be booted, from the first of these that has one: the
// directory $PENSTOCK_GUEST_KERNEL (with boot/vmlinuz-* and lib/modules, as a package unpacks to);
// the current kernel of the distribution, by apt, out of the cache when it is there; the kernel
// that was used last, when apt has nothing to say; the host's own kernel. It asks apt once a day. A
// recent kernel is that of newer.go instead of the distribution's.
func findKernel(ctx context.Context, recent bool) (kernel, error) {
	if dir := os.Getenv("PENSTOCK_GUEST_KERNEL"); dir != "" {
		return kernelBelow(dir)
	}
	cache, err := testenv.CacheDir()
	if err != nil {
		return kernel{}, err
	}
	// its text names the kernel, its time says when apt was asked
	current := filepath.Join(cache, "guest-kernel-current")
	ask := func() (kernel, error) { return aptKernel(ctx, nil) }
	if recent {
		current = filepath.Join(cache, "guest-kernel-newer")
		ask = func() (kernel, error) { return newerKernel(ctx, cache) }
	}
	last, age := lastKernel(cache, current)
	if last.name != "" && age < 24*time.Hour {
		return last, nil
	}
	k, err := ask()
	if err == nil {
		return k, writeFile(current, filepath.Base(filepath.Dir(k.image)))
	}
	if last.name != "" {
		return last, nil
	}
	if recent {
		return kernel{}, fmt.Errorf("guest: %w: no recent kernel to boot: %w. Unpack a kernel's package and name the "+
			"directory in PENSTOCK_GUEST_KERNEL", ErrMissing, err)
	}
	k, hostErr := kernelBelow("/")
	if hostErr == nil {
		return k, nil
	}
	return kernel{}, fmt.Errorf("guest: %w: no kernel to boot. By apt: %w. The host's own: %w. "+
		"Run apt-get update, or unpack a kernel's package and name the directory in PENSTOCK_GUEST_KERNEL", ErrMissing,
		err, hostErr)
}

// writeFile replaces a file in one step.
func writeFile(name, text string) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+"-")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Chmod(0o644) // the cache may be shared
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// lastKernel is the kernel that was used last and the time since apt was asked for it.
func lastKernel(cache, current string) (kernel, time.Duration) {
	text, err := os.ReadFile(current)
	if err != nil {
		return kernel{}, 0
	}
	st, err := os.Stat(current)
	if err != nil {
		return kernel{}, 0
	}
	k := unpacked(filepath.Join(cache, filepath.Base(string(text))))
	if _, err := os.Stat(k.image); err != nil {
		return kernel{}, 0
	}
	return k, time.Since(st.ModTime())
}

// unpacked is the kernel in a directory of the cache.
func unpacked(dir string) kernel {
	name := strings.TrimPrefix(filepath.Base(dir), "guest-kernel"+kernelLayout+"-")
	return kernel{name: name, image: filepath.Join(dir, "vmlinux"), modules: filepath.Join(dir, "modules")}
}

// output runs a program tied to this process and returns what it printed.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &errs
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	wait, err := sys.StartTied(cmd)
	if err == nil {
		err = wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.String(), nil
}

var (
	dependsLine = regexp.MustCompile(`(?m)^\s*Depends: (linux-image-\S+)$`)
	versionLine = regexp.MustCompile(`(?m)^Version: (\S+)$`)
	partLine    = regexp.MustCompile(`(?m)^\s*Depends: (linux-(?:base|binary|modules)-\d\S*)$`)
)

// aptKernel is the current kernel of the distribution, or of another one that the options of apt
// name, fetched and unpacked unless the cache has it.
func aptKernel(ctx context.Context, options []string) (kernel, error) {
	aptCache, err := testenv.Tool("apt-cache", "apt")
	if err != nil {
		return kernel{}, err
	}
	var pkg string
	var errs error
	for _, meta := range metapackages {
		out, err := output(ctx, "", aptCache, slices.Concat(options, []string{"depends", meta})...)
		if m := dependsLine.FindStringSubmatch(out); err == nil && m != nil {
			pkg = m[1]
			break
		}
		errs = errors.Join(errs, err)
	}
	if pkg == "" {
		return kernel{}, fmt.Errorf("apt knows no kernel by the names %s (is this Debian, and did apt-get update "+
			"run?): %w",
			strings.Join(metapackages, ", "), errs)
	}
	out, err := output(ctx, "", aptCache, slices.Concat(options, []string{"show", "--no-all-versions", pkg})...)
	m := versionLine.FindStringSubmatch(out)
	if err != nil || m == nil {
		return kernel{}, fmt.Errorf("apt-cache show %s names no version: %w", pkg, err)
	}
	// Since Linux 6.19 the kernel, its modules and the list of what is built in are in packages of
	// their own.
	packages := []string{pkg + "=" + m[1]}
	out, err = output(ctx, "", aptCache, slices.Concat(options, []string{"depends", pkg})...)
	if err != nil {
		return kernel{}, err
	}
	for _, part := range partLine.FindAllStringSubmatch(out, -1) {
		packages = append(packages, part[1]+"="+m[1])
	}
	prune("guest-kernel" + kernelLayout + "-")
	key := "guest-kernel" + kernelLayout + "-" + pkg + "_" + strings.ReplaceAll(m[1], ":", "%3a")
	dir, err := testenv.Cached(key, func(tmp string) error { return fetchKernel(ctx, options, packages, tmp) })
	if err != nil {
		return kernel{}, err
	}
	return unpacked(dir), nil
}

// fetchKernel downloads the packages of a kernel (as any user; apt checks their signatures) and
// unpacks what a guest needs to dir.
func fetchKernel(ctx context.Context, options, packages []string, dir string) error {
	apt, err := testenv.Tool("apt-get", "apt")
	if err != nil {
		return err
	}
	dpkg, err := testenv.Tool("dpkg-deb", "dpkg")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if _, err := output(ctx, dir, apt, slices.Concat([]string{"-q", "-o", "APT::Sandbox::User="}, options,
		[]string{"download"}, packages)...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != len(packages) {
		return fmt.Errorf("apt-get download %s left %d packages in %s", strings.Join(packages, " "), len(debs), dir)
	}
	have := map[string]bool{}
	for _, deb := range debs {
		if err := unpackPackage(ctx, dpkg, deb, dir, have); err != nil {
			return err
		}
	}
	for _, need := range []string{"boot/vmlinuz-*", "lib/modules"} {
		if !have[need] {
			return fmt.Errorf("guest: no %s in %s", need, strings.Join(packages, " "))
		}
	}
	return nil
}

// unpackPackage unpacks a package and removes it.
func unpackPackage(ctx context.Context, dpkg, deb, dir string, have map[string]bool) error {
	cmd := exec.CommandContext(ctx, dpkg, "--fsys-tarfile", deb)
	// Not StdoutPipe: that is closed when the program has ended, which may be before all is read.
	pipe, end, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout = end
	wait, err := sys.StartTied(cmd)
	end.Close()
	if err != nil {
		pipe.Close()
		return err
	}
	err = unpackKernel(ctx, pipe, dir, have)
	pipe.Close()
	if werr := wait(); err == nil && werr != nil {
		err = fmt.Errorf("%s: %w", cmd, werr)
	}
	if err != nil {
		return err
	}
	return os.Remove(deb)
}

// unpackKernel takes what a guest needs out of the file system of a kernel's package, and notes in
// have what there was.
func unpackKernel(ctx context.Context, r io.Reader, dir string, have map[string]bool) error {
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("guest: the kernel's package: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/usr")
		if strings.HasPrefix(name, "/boot/vmlinuz-") || strings.HasPrefix(name, "/lib/modules/") &&
			path.Base(name) == "vmlinuz" {
			b, err := io.ReadAll(t)
			if err != nil {
				return err
			}
			if err := extractFile(ctx, b, filepath.Join(dir, "vmlinux")); err != nil {
				return fmt.Errorf("guest: %s: %w", name, err)
			}
			have["boot/vmlinuz-*"] = true
		}
		rest, ok := strings.CutPrefix(name, "/lib/modules/")
		if !ok {
			continue
		}
		_, rest, _ = strings.Cut(rest, "/") // without the release
		inside, isModule := strings.CutPrefix(rest, "kernel/")
		if rest != "modules.builtin" && !(isModule && keepModule(inside)) {
			continue
		}
		have["lib/modules"] = true
		to := filepath.Join(dir, "modules", filepath.FromSlash(rest))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		f, err := os.Create(to)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, t)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// kernelBelow finds a kernel in a root file system: the newest boot/vmlinuz-X that can be read and
// has lib/modules/X.
func kernelBelow(root string) (kernel, error) {
	images, err := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if err != nil {
		return kernel{}, err
	}
	slices.Sort(images)
	slices.Reverse(images)
	errs := fmt.Errorf("no %s", filepath.Join(root, "boot/vmlinuz-*"))
	for _, file := range images {
		release := strings.TrimPrefix(filepath.Base(file), "vmlinuz-")
		modules := filepath.Join(root, "lib/modules", release)
		if _, err := os.Stat(filepath.Join(modules, "kernel")); err != nil {
			errs = err
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			errs = err
			continue
		}
		image, err := testenv.Cached("guest-vmlinux-"+testenv.Hash(b), func(tmp string) error {
			return extractFile(context.Background(), b, tmp)
		})
		if err != nil {
			errs = fmt.Errorf("%s: %w", file, err)
			continue
		}
		return kernel{name: file, image: image, modules: modules}, nil
	}
	return kernel{}, errs
}

func extractFile(ctx context.Context, vmlinuz []byte, to string) error {
	b, err := extract(ctx, vmlinuz)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// extract takes the kernel proper out of a bootable image (bzImage), whose header says where it is
// and which is compressed in one of several ways. qemu starts it directly, which saves the guest
// unpacking it with a translated processor. See the kernel's Documentation/arch/x86/boot.rst.
func extract(ctx context.Context, b []byte) ([]byte, error) {
	if len(b) < 0x250 || string(b[0x202:0x206]) != "HdrS" {
		return nil, errors.New("not a kernel for x86: no header HdrS at byte 0x202")
	}
	if v := binary.LittleEndian.Uint16(b[0x206:]); v < 0x208 {
		return nil, fmt.Errorf("boot protocol %#x is older than 2.08, which first said where the kernel is", v)
	}
	setup := int64(b[0x1f1])
	if setup == 0 {
		setup = 4
	}
	start := (setup+1)*512 + int64(binary.LittleEndian.Uint32(b[0x248:]))
	end := start + int64(binary.LittleEndian.Uint32(b[0x24c:]))
	if start+4 >= end || end > int64(len(b)) {
		return nil, fmt.Errorf("the kernel is said to be at bytes %d to %d of %d", start, end, len(b))
	}
	out, err := decompress(ctx, b[start:end])
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(out, []byte("\x7fELF")) {
		return nil, errors.New("what the image contains is not a kernel in ELF format")
	}
	return out, nil
}

// decompress unpacks gzip by itself, and xz, zstd and lz4 by the programs of those names. Bytes
// behind the end are ignored (the kernel's build adds the size).
func decompress(ctx context.Context, b []byte) ([]byte, error) {
	var program, pkg string
	var args []string
	switch {
	case bytes.HasPrefix(b, []byte("\x1f\x8b")):
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		z.Multistream(false)
		return io.ReadAll(z)
	case bytes.HasPrefix(b, []byte("\xfd7zXZ\x00")):
		program, pkg, args = "xz", "xz-utils", []string{"-dc", "--single-stream"}
	case bytes.HasPrefix(b, []byte("\x28\xb5\x2f\xfd")):
		program, pkg, args = "zstd", "zstd", []string{"-dcq"}
	case bytes.HasPrefix(b, []byte("\x02\x21\x4c\x18")):
		program, pkg, args = "lz4", "lz4", []string{"-dc"}
	default:
		return nil, fmt.Errorf("compressed in an unknown way (first bytes % x)", b[:min(6, len(b))])
	}
	tool, err := testenv.Tool(program, pkg)
	if err != nil {
		return nil, err
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(b), &out, &errs
	wait, err := sys.StartTied(cmd)
	if err != nil {
		return nil, err
	}
	// zstd and lz4 complain about what follows the end after they wrote everything before it.
	if err := wait(); err != nil && (out.Len() == 0 || program == "xz") {
		return nil, fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.Bytes(), nil
}
