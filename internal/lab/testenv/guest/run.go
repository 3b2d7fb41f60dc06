package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

// ErrMissing is wrapped by the errors of a host that lacks what a guest is made of. A missing
// program is exec.ErrNotFound.
var ErrMissing = errors.New("missing on this machine")

// TapEnv is the environment variable that tells a program in a guest why its virtio cards have one
// queue only: what the host said when a tap device was asked for. It is empty where they have all
// their queues.
const TapEnv = "PENSTOCK_GUEST_TAP"

// DefaultTimeout is how long a guest may run when Spec does not say.
const DefaultTimeout = 6 * time.Minute

// failGrace is how long one guest of a pair may go on when the other has failed.
const failGrace = 20 * time.Second

// Spec says which guest to boot.
type Spec struct {
	Profile Profile
	Guests  int           // 1 (also when it is 0), or 2 joined by a cable: link0, 10.9.0.1 and 10.9.0.2
	Timeout time.Duration // from the boot to the end; 0 is DefaultTimeout
	Files   []File        // taken along for this run
	Env     []string      // "NAME=value" for the program
	// Linked has Enter take the test binary as it is, with the libraries that it is linked with.
	// Without it a binary that is not static is built once more as one that is.
	Linked bool
	// PowersOff is the number of the guest that calls PowerOff in the middle of the program, 0 for
	// none. The program need not end there, and a guest that goes on until its program ends is an
	// error.
	PowersOff int

	patience time.Duration // how long a guest may take to boot; 0 is bootPatience
}

// File is a file of the host that a guest gets, with the libraries that it needs.
type File struct {
	Host  string
	Guest string // absolute path in the guest, not below /tmp, /run, /dev, /proc or /sys, which are empty at first
}

// Result is what a run was.
type Result struct {
	Kernel  string        // package and version
	Prepare time.Duration // kernel, image, and waiting for other guests to end
	Total   time.Duration // from the start of qemu to its end
	Guests  []Verdict
	Again   int // how often the emulator's own fault made the guests boot once more
}

// Verdict is how one guest ended.
type Verdict struct {
	ID      int           // 1 or 2
	Exit    int           // of the program; -1 when the guest did not get that far
	Err     error         // why it did not
	Off     bool          // it was to lose its power, and did while its program ran
	Boot    time.Duration // until the program was started
	Console string        // the end of the kernel's log
}

// OK reports whether the program ended well in every guest.
func (r Result) OK() bool {
	return len(r.Guests) > 0 && !slices.ContainsFunc(r.Guests, func(v Verdict) bool {
		return v.Err != nil || v.Exit != 0
	})
}

// String is the line for the lab's ledger.
func (r Result) String() string {
	if len(r.Guests) == 0 {
		return "no guest"
	}
	again := ""
	if r.Again > 0 {
		again = fmt.Sprintf(", booted %d times because of the emulator's own fault", 1+r.Again)
	}
	return fmt.Sprintf("boot %.1f s, total %.1f s, prepare %.1f s, %d guest(s), %s%s", r.Guests[0].Boot.Seconds(),
		r.Total.Seconds(),
		r.Prepare.Seconds(), len(r.Guests), r.Kernel, again)
}

// bootPatience is how long a guest may take until its program begins. A guest boots in less than
// ten seconds, on a busy host in some more; one that has not begun by then hangs in its kernel or
// before, and nothing but a new one helps.
const bootPatience = 90 * time.Second

// maxAgain is how often guests are booted once more after a fault of the emulator.
const maxAgain = 2

// emulator reports whether a guest's kernel died of the emulator rather than of what it ran. With a
// thread for each processor, qemu before 8.1 may translate an instruction while another processor
// patches it, and keep what it saw: the breakpoint that stands there meanwhile. The kernel then
// dies of an int3 that is no longer set, or of a patch that did not arrive.
//
// A guest may also stop before its program begins, without a word: no processor of it goes on. Only
// time shows that.
func (v Verdict) emulator() bool {
	return errors.Is(v.Err, errStuck) || errors.Is(v.Err, errNoVerdict) && emulatorFault.MatchString(v.Console)
}

// errStuck is the end of guests of which one did not come to its program.
var errStuck = errors.New("the guest did not start its program")

var emulatorFault = regexp.MustCompile(`Oops: int3|int3: 0000 \[#1\]|RIP: 0010:__text_poke`)

// powered is the verdict about a guest that was to lose its power while its program ran.
func (v *Verdict) powered() {
	switch {
	case v.Err == nil:
		v.Exit, v.Err = -1, fmt.Errorf("guest %d: its program ended with exit status %d; expected that it calls "+
			"PowerOff", v.ID, v.Exit)
	case errors.Is(v.Err, errNoVerdict) && v.Boot > 0 && !v.emulator():
		v.Off, v.Exit, v.Err = true, 0, nil
	}
}

// emulator is true when that is what made the run fail.
func (r Result) emulator() bool { return slices.ContainsFunc(r.Guests, Verdict.emulator) }

// Run boots the guests of a Spec and runs a program in each, with the arguments argv. lines gets
// each line of output with the number of the guest, one at a time. The error is that of the lab:
// something is missing on this host, or was cancelled; how the program ended is in Result. All
// processes that share a cache run one set of guests at a time. Guests that die of a fault of the
// emulator before they have printed a line are booted once more, see Result.Again.
func Run(ctx context.Context, s Spec, argv []string, lines func(id int, line string)) (Result, error) {
	begun := time.Now()
	var r Result
	if runtime.GOARCH != "amd64" {
		return r, fmt.Errorf("guest: %w: guests run on amd64, this is %s", ErrMissing, runtime.GOARCH)
	}
	guests := max(s.Guests, 1)
	if guests > 2 || guests == 2 && s.Profile.Link.Model == "" {
		return r, fmt.Errorf("guest: profile %s: %d guests; expected 1, or 2 of a profile with a link", s.Profile.Name,
			s.Guests)
	}
	if s.PowersOff < 0 || s.PowersOff > guests {
		return r, fmt.Errorf("guest: guest %d is to lose its power; expected a number up to %d", s.PowersOff, guests)
	}
	if _, err := testenv.Tool("qemu-system-x86_64", "qemu-system-x86"); err != nil {
		return r, err
	}
	k, err := findKernel(ctx, s.Profile.Recent)
	if err != nil {
		return r, err
	}
	r.Kernel = k.name
	image, err := buildImage(ctx, s.Profile, k)
	if err != nil {
		return r, err
	}
	var taps map[int][]*os.File
	if guests == 1 {
		why := "" // there are no queues
		if taps, err = openTaps(s.Profile); err != nil {
			why = err.Error()
		}
		defer closeTaps(taps)
		s.Env = append(slices.Clone(s.Env), TapEnv+"="+why)
	}
	initrd, err := loadImage(image, s, argv)
	if err != nil {
		return r, err
	}
	defer initrd.Close()
	unlock, err := testenv.Lock("guests")
	if err != nil {
		return r, err
	}
	defer unlock()
	r.Prepare = time.Since(begun)

	said := false
	for {
		err = boot(ctx, s, k, initrd, taps, &r, func(id int, line string) {
			said = true
			lines(id, line)
		})
		if err != nil || said || r.Again == maxAgain || !r.emulator() {
			return r, err
		}
		r.Again++
	}
}

// boot runs the guests once, and says in r how that went. It calls lines no more when it has
// returned. What the programs print is held back until all guests have come to their programs, and
// dropped when the emulator kept one from it.
func boot(ctx context.Context, s Spec, k kernel, initrd *os.File, taps map[int][]*os.File, r *Result,
	lines func(id int, line string)) error {
	timeout := s.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer time.AfterFunc(timeout, func() { cancel(fmt.Errorf("it ran longer than %v and was killed", timeout)) }).Stop()
	guests := max(s.Guests, 1)
	var links [2]*os.File
	if guests == 2 {
		var err error
		if links[0], links[1], err = sys.SocketPairDatagram("link"); err != nil {
			return err
		}
		defer links[0].Close()
		defer links[1].Close()
	}
	started := time.Now()
	var mu sync.Mutex
	var held []func()
	up := 0
	patience := cmp.Or(s.patience, bootPatience)
	defer time.AfterFunc(patience, func() {
		mu.Lock()
		defer mu.Unlock()
		if up < guests {
			cancel(fmt.Errorf("%w: %d of %d did within %v", errStuck, up, guests, patience))
		}
	}).Stop()
	release := func() {
		for _, f := range held {
			f()
		}
		held = nil
	}
	ms := make([]*machine, guests)
	for i := range ms {
		var err error
		ms[i], err = start(ctx, s.Profile, k, i+1, initrd, links[i], taps, func() {
			mu.Lock()
			defer mu.Unlock()
			if up++; up == guests {
				release()
			}
		}, func(line string) {
			mu.Lock()
			defer mu.Unlock()
			if held = append(held, func() { lines(i+1, line) }); up == guests {
				release()
			}
		})
		if err != nil {
			cancel(err)
			for _, m := range ms[:i] {
				m.finish()
			}
			return err
		}
	}
	// Only the machines hold the ends of the cable, so that it ends nowhere when one of them is
	// gone.
	links[0].Close()
	links[1].Close()
	r.Guests = make([]Verdict, guests)
	var wg sync.WaitGroup
	for i, m := range ms {
		wg.Go(func() {
			exit, err := m.finish()
			if err != nil && ctx.Err() != nil {
				err = fmt.Errorf("guest %d: %w", m.id, context.Cause(ctx))
			}
			v := Verdict{ID: m.id, Exit: exit, Err: err, Boot: m.boot, Console: m.console.String()}
			if m.id == s.PowersOff {
				v.powered()
			}
			r.Guests[i] = v
			if v.Exit != 0 {
				time.AfterFunc(failGrace, func() {
					cancel(errors.New("it was killed because the other guest had failed"))
				})
			}
		})
	}
	wg.Wait()
	r.Total = time.Since(started)
	if !r.emulator() {
		release()
	}
	if !r.OK() && caller.Err() != nil {
		return context.Cause(caller)
	}
	return nil
}

// loadImage puts the root file system into memory, and behind it a second archive with what only
// this run needs. No file is left to remove, whatever happens to this process.
func loadImage(image string, s Spec, argv []string) (*os.File, error) {
	mem, err := sys.Memfile("penstock guest")
	if err != nil {
		return nil, err
	}
	base, err := os.Open(image)
	if err == nil {
		_, err = io.Copy(mem, base)
		base.Close()
	}
	if err == nil {
		err = writeRun(mem, s, argv)
	}
	if err != nil {
		mem.Close()
		return nil, fmt.Errorf("guest: image: %w", err)
	}
	return mem, nil
}

// writeRun writes the archive of one run: the script that init starts, and the files that were
// asked for with their libraries.
func writeRun(w io.Writer, s Spec, argv []string) error {
	c := newCpio(w)
	// Only directories that an image does not have as links may be made here: a directory would
	// replace the link.
	c.dirs["/usr/bin"], c.dirs["/usr/lib"], c.dirs["/usr/lib64"], c.dirs[guestLibraries] = true, true, true, true
	c.file("/guest/run", 0o755, []byte(runScript(s.Env, argv)))
	libs := newLibraryFinder()
	for _, f := range s.Files {
		c.copyFrom(guestPath(f.Guest), 0o755, f.Host)
		if err := libs.add(f.Host); err != nil {
			return err
		}
	}
	libs.found.place(c)
	return c.close()
}

// runScript is the script that becomes the program.
func runScript(env, argv []string) string {
	var b strings.Builder
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		fmt.Fprintf(&b, "export %s=%s\n", name, quote(value))
	}
	b.WriteString("exec")
	for _, a := range argv {
		b.WriteString(" " + quote(a))
	}
	return b.String() + "\n"
}

// quote makes a string one word of the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// RunCommand runs a program in one guest, writes its output to out as it comes, and returns its
// exit status. A name without a slash is a program of the profile, an applet of busybox, or else
// one of the host, which is taken along with its libraries; so is one with a slash. An exit status
// other than 0 is not an error. Where the guest itself failed, the error has its log.
func RunCommand(ctx context.Context, s Spec, argv []string, out io.Writer) (exit int, err error) {
	if len(argv) == 0 {
		return -1, errors.New("guest: no program to run")
	}
	if s.Guests > 1 {
		return -1, errors.New("guest: RunCommand runs one guest")
	}
	argv = slices.Clone(argv)
	name := filepath.Base(argv[0])
	host := ""
	if name != argv[0] {
		host = argv[0]
	} else if known, err := inImage(ctx, s.Profile, name); err != nil {
		return -1, err
	} else if !known {
		if host, err = testenv.Tool(name, "the package that has it"); err != nil {
			return -1, err
		}
	}
	if host != "" {
		argv[0] = "/guest/bin/" + name
		s.Files = append(slices.Clone(s.Files), File{host, argv[0]})
	}
	var werr error
	r, err := Run(ctx, s, argv, func(_ int, line string) {
		if _, err := fmt.Fprintln(out, line); err != nil && werr == nil {
			werr = err
		}
	})
	if err != nil {
		return -1, err
	}
	v := r.Guests[0]
	if v.Err != nil {
		return -1, fmt.Errorf("%w\n%s", v.Err, v.Console)
	}
	return v.Exit, werr
}

// inImage reports whether an image has a program of this name.
func inImage(ctx context.Context, p Profile, name string) (bool, error) {
	if name == "sh" || slices.ContainsFunc(p.Programs, func(q Program) bool { return q.Name == name }) {
		return true, nil
	}
	busybox, err := testenv.Tool("busybox", "busybox-static")
	if err != nil {
		return false, err
	}
	applets, err := output(ctx, "", busybox, "--list")
	return slices.Contains(strings.Fields(applets), name), err
}
