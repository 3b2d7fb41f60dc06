package guest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// A recent kernel is one of Debian's backports, for what the distribution's own is too old for,
// such as virtio cards that are zero-copy for AF_XDP (Linux 6.13). Apt fetches it as it fetches the
// other, with a list of sources and a state of its own: nothing of the machine's changes, and no
// rights are needed.
const (
	newerSuite = "trixie-backports"
	newerKeys  = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// newerKernel is the current kernel of the suite, fetched and unpacked unless the cache has it.
func newerKernel(ctx context.Context, cache string) (kernel, error) {
	if _, err := os.Stat(newerKeys); err != nil {
		return kernel{}, fmt.Errorf("no keys of Debian's archive; on Debian: apt-get install debian-archive-keyring: %w", err)
	}
	apt, err := testenv.Tool("apt-get", "apt")
	if err != nil {
		return kernel{}, err
	}
	unlock, err := testenv.Lock("guest-apt")
	if err != nil {
		return kernel{}, err
	}
	defer unlock()
	dir := filepath.Join(cache, "guest-apt")
	for _, d := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return kernel{}, err
		}
	}
	sources, status := filepath.Join(dir, "sources.list"), filepath.Join(dir, "status")
	archive, err := debianArchive(ctx, apt)
	if err != nil {
		return kernel{}, err
	}
	line := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", newerKeys, archive, newerSuite)
	if err := writeFile(sources, line); err != nil {
		return kernel{}, err
	}
	if err := writeFile(status, ""); err != nil {
		return kernel{}, err
	}
	options := []string{"-o", "APT::Sandbox::User=", "-o", "Dir::Etc::SourceList=" + sources, "-o",
		"Dir::Etc::SourceParts=/dev/null",
		"-o", "Dir::State::Lists=" + filepath.Join(dir, "lists"), "-o", "Dir::State::status=" + status, "-o",
		"Dir::Cache=" + dir,
		"-o", "Acquire::Retries=3"}
	if _, err := output(ctx, "", apt, append(options[:len(options):len(options)], "-q", "update")...); err != nil {
		return kernel{}, err
	}
	return aptKernel(ctx, options)
}

// debianArchive is where this machine has the packages of its distribution from.
func debianArchive(ctx context.Context, apt string) (string, error) {
	targets, err := output(ctx, "", apt, "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(targets) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "Debian" {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("apt has no source with the label Debian, so no backports of it: %q", targets)
}
