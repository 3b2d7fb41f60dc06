package guest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

// consoleKept is how much of a guest's console is kept, counted from its end.
const consoleKept = 64 << 10

// A machine is a running guest.
type machine struct {
	id      int
	tag     string
	console *tail
	stderr  *tail
	cancel  context.CancelFunc
	out     *os.File // our end of the guest's second serial port
	con     *os.File // of the first
	readers sync.WaitGroup
	wait    func() error

	// Written by the reader of the port, valid when readers is done.
	boot  time.Duration
	blank bool   // an empty line has not been passed on yet
	last  string // the last line of init: "exit 0", "failed ..."
	up    func()
	lines func(line string)
	begun time.Time
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	b    []byte
	lost int
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if n := len(t.b) - consoleKept; n > 0 {
		t.lost += n
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := strings.ToValidUTF8(strings.ReplaceAll(string(t.b), "\r", ""), "?")
	if t.lost > 0 {
		s = fmt.Sprintf("(%d bytes before this are lost)\n", t.lost) + s
	}
	return s
}

// arguments are qemu's arguments for a guest. Descriptors are numbers in the child: initrd,
// console, output, and link, the cable to the other guest, which is 0 when there is none. taps are
// the queues of each card that has more than one.
func arguments(p Profile, k kernel, id int, tag string, initrd, console, output, link int,
	taps map[int][]int) []string {
	args := []string{
		"-accel", "tcg,thread=multi", "-cpu", "max", "-M", "q35", "-smp", strconv.Itoa(p.CPUs), "-m",
		strconv.Itoa(p.Memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot",
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", console), "-serial", "chardev:console",
		"-chardev", fmt.Sprintf("socket,id=output,fd=%d", output), "-serial", "chardev:output",
		"-kernel", k.image, "-initrd", fmt.Sprintf("/proc/self/fd/%d", initrd),
	}
	// clocksource=hpet: on a busy host the kernel may take the frequency of the processor's counter
	// for a fourth of what it is, and time would then run four times as fast. tsc=reliable and
	// no_timer_check spare tests that a busy host makes fail.
	kargs := []string{"console=ttyS0", "loglevel=4", "panic=-1", "rdinit=/init", "net.ifnames=0", "mitigations=off",
		"audit=0",
		"clocksource=hpet", "tsc=reliable", "no_timer_check", "cryptomgr.notests", "random.trust_cpu=on",
		"penstock=" + tag, fmt.Sprintf("penstock.id=%d", id)}
	args = append(args, "-append", strings.Join(append(kargs, p.Kernel...), " "))
	args = append(args, p.Machine...)
	for i, n := range p.NICs {
		if fds := taps[i]; len(fds) > 0 {
			list := strings.Trim(strings.ReplaceAll(fmt.Sprint(fds), " ", ":"), "[]")
			args = append(args, "-netdev", fmt.Sprintf("tap,id=n%d,vhost=off,fds=%s", i, list))
			n.Options += fmt.Sprintf(",mq=on,vectors=%d", 2*len(fds)+2)
		} else {
			args = append(args, "-netdev", fmt.Sprintf("hubport,id=n%d,hubid=%d", i, hub(i, n)))
		}
		args = append(args, "-device", device(n, fmt.Sprintf("n%d", i), nicMAC(i)))
	}
	if link > 0 {
		// Datagrams, not a stream: what is sent to a machine that is gone is dropped, as by a real
		// cable. A stream to it would stop the card with a packet half written, and the kernel
		// would wait for ever for the packets in the card's queue.
		args = append(args, "-netdev", fmt.Sprintf("dgram,id=link,local.type=fd,local.str=%d", link))
		args = append(args, "-device", device(p.Link, "link", linkMAC(id)))
	}
	return args
}

// hub is the number of a card's hub; a card without a cable gets one for itself.
func hub(i int, n NIC) int {
	if n.Hub > 0 {
		return n.Hub
	}
	return 1000 + i
}

func device(n NIC, netdev, mac string) string {
	s := fmt.Sprintf("%s,netdev=%s,mac=%s", n.Model, netdev, mac)
	if n.Options != "" {
		s += "," + strings.TrimPrefix(n.Options, ",")
	}
	return s
}

// openTaps makes the tap devices for the cards of a profile that have several queues, by number of
// the card.
func openTaps(p Profile) (map[int][]*os.File, error) {
	taps := map[int][]*os.File{}
	for i, n := range p.NICs {
		if n.Queues < 2 {
			continue
		}
		files, err := sys.TapQueues(n.Name, n.Queues)
		if err != nil {
			closeTaps(taps)
			return nil, err
		}
		taps[i] = files
	}
	return taps, nil
}

func closeTaps(taps map[int][]*os.File) {
	for _, files := range taps {
		for _, f := range files {
			f.Close()
		}
	}
}

// start boots a guest. initrd, link and taps stay the caller's. up is called when the program
// begins, lines with each line of it.
func start(ctx context.Context, p Profile, k kernel, id int, initrd, link *os.File, taps map[int][]*os.File,
	up func(), lines func(line string)) (*machine, error) {
	qemu, err := testenv.Tool("qemu-system-x86_64", "qemu-system-x86")
	if err != nil {
		return nil, err
	}
	tag := make([]byte, 12)
	rand.Read(tag)
	m := &machine{id: id, tag: hex.EncodeToString(tag), console: new(tail), stderr: new(tail), up: up, lines: lines,
		begun: time.Now()}
	var farOut, farCon *os.File
	if m.out, farOut, err = sys.SocketPairStream("guest output"); err != nil {
		return nil, err
	}
	defer farOut.Close()
	if m.con, farCon, err = sys.SocketPairStream("guest console"); err != nil {
		m.out.Close()
		return nil, err
	}
	defer farCon.Close()

	ctx, m.cancel = context.WithCancel(ctx)
	files, linkFD := []*os.File{initrd, farCon, farOut}, 0
	if link != nil {
		files, linkFD = append(files, link), 6
	}
	numbers := map[int][]int{}
	for i, queues := range taps {
		for _, f := range queues {
			numbers[i] = append(numbers[i], 3+len(files))
			files = append(files, f)
		}
	}
	cmd := exec.CommandContext(ctx, qemu, arguments(p, k, id, m.tag, 3, 4, 5, linkFD, numbers)...)
	cmd.ExtraFiles = files
	cmd.Stdout, cmd.Stderr = m.stderr, m.stderr
	if m.wait, err = sys.StartTied(cmd); err != nil {
		m.cancel()
		m.out.Close()
		m.con.Close()
		return nil, fmt.Errorf("guest: %w", err)
	}
	m.readers.Add(2)
	go func() {
		defer m.readers.Done()
		m.read()
	}()
	go func() {
		defer m.readers.Done()
		io.Copy(m.console, m.con)
	}()
	return m, nil
}

// read splits the output into lines until the guest ends or says that it is done; then it stops the
// machine.
func (m *machine) read() {
	var line []byte
	buf := make([]byte, 32<<10)
	for {
		n, err := m.out.Read(buf)
		for rest := buf[:n]; len(rest) > 0; {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				line = append(line, rest...)
				break
			}
			line = append(line, rest[:i]...)
			rest = rest[i+1:]
			if m.line(string(line)) {
				m.cancel()
				return
			}
			line = line[:0]
		}
		if err != nil {
			if len(line) > 0 {
				m.line(string(line))
			}
			return
		}
	}
}

// line takes one line of output and reports whether it was the last.
func (m *machine) line(s string) bool {
	word, ok := strings.CutPrefix(s, m.tag+" ")
	switch {
	case !ok:
		// init begins its last line with a line break, which may make an empty line that no program
		// printed: an empty line waits for the next one.
		if m.blank {
			m.lines("")
		}
		if m.blank = s == ""; !m.blank {
			m.lines(s)
		}
	case strings.HasPrefix(word, "up "):
		m.boot = time.Since(m.begun)
		m.up()
	default:
		m.last = word
		return true
	}
	return false
}

// errNoVerdict is the end of a guest that did not say how its program ended.
var errNoVerdict = errors.New("the guest ended without saying how the program ended")

// finish waits for the end of the machine and returns the exit status of the program inside.
func (m *machine) finish() (exit int, err error) {
	waited := m.wait()
	m.cancel()
	m.readers.Wait()
	m.out.Close()
	m.con.Close()
	if code, ok := strings.CutPrefix(m.last, "exit "); ok {
		return strconv.Atoi(code)
	}
	if m.last != "" {
		return -1, fmt.Errorf("guest %d: could not be set up: %s", m.id, m.last)
	}
	if said := strings.TrimSpace(m.stderr.String()); said != "" {
		return -1, fmt.Errorf("guest %d: %w; qemu says: %s", m.id, errNoVerdict, said)
	}
	return -1, fmt.Errorf("guest %d: %w (qemu: %v)", m.id, errNoVerdict, waited)
}
