package peers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// home is a new empty directory for the files of a run. A program that is started in it keeps there
// what it writes on its own account. If this process ends without remove, even by SIGKILL, a small
// shell that waits for the end of a pipe kills what the programs had started in their turn, and
// removes the directory.
type home struct {
	dir   string
	w     *os.File // the pipe; the numbers of process groups go through it
	shell *exec.Cmd
}

// The programs get SIGKILL at the moment when the shell wakes; until they are gone they may still
// make files. The loop is for that, and ends: about 10 s.
const homeShell = `
groups=
while read -r g; do groups="$groups $g"; done
for g in $groups; do { kill -s KILL -- "-$g" || kill -s KILL "-$g"; } 2>/dev/null; done
for g in $groups; do rm -f -- "/dev/shm/$g":*; done
n=0
until rm -rf -- "$1" 2>/dev/null || [ $n = 100 ]; do n=$((n+1)); sleep 0.1; done
sleep 0.2
rm -rf -- "$1"
for g in $groups; do rm -f -- "/dev/shm/$g":*; done`

// sharedFiles are the names of the files in shared memory that libfabric leaves behind in a process
// that is killed.
func sharedFiles(pid int) string { return fmt.Sprintf("/dev/shm/%d:*", pid) }

func newHome(name string) (*home, error) {
	dir, err := os.MkdirTemp("", "penstock-"+name+"-")
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("peers: %w", err), os.RemoveAll(dir))
	}
	h := &home{dir: dir, w: w, shell: exec.Command("/bin/sh", "-c", homeShell, "sh", dir)}
	h.shell.Stdin = r
	h.shell.SysProcAttr = sys.OwnGroup() // an interrupt from the terminal is not for it
	err = h.shell.Start()
	r.Close()
	if err != nil {
		w.Close()
		return nil, errors.Join(fmt.Errorf("peers: %w", err), os.RemoveAll(dir))
	}
	return h, nil
}

// env is an environment in which a program keeps what it writes on its own account in the
// directory.
func (h *home) env() []string {
	return []string{"HOME=" + h.dir, "TMPDIR=" + h.dir, "XDG_CONFIG_HOME=" + h.dir, "XDG_CACHE_HOME=" + h.dir,
		"XDG_DATA_HOME=" + h.dir,
		"XDG_RUNTIME_DIR=" + h.dir, "RUNTIME_DIRECTORY=" + h.dir, "POCL_CACHE_DIR=" + h.dir}
}

// guard tells the shell of a program that was started here and leads its process group.
func (h *home) guard(pid int) { fmt.Fprintln(h.w, pid) }

// remove removes the directory. The programs in it have ended.
func (h *home) remove() error {
	err := removeAll(h.dir)
	// The shell has nothing to do any more, and dies before the pipe tells it to begin.
	h.shell.Process.Kill()
	h.shell.Wait()
	h.w.Close()
	if err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	return nil
}

// removeAll removes a directory, also while a process that was killed just now makes its last files
// in it.
func removeAll(dir string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for try := 1; ; try++ {
		err := os.RemoveAll(dir)
		if err == nil || try == 100 {
			return err
		}
		<-tick.C
	}
}
