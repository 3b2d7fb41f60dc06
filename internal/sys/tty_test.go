package sys

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTerminal(t *testing.T) {
	user, program, err := OpenTerminal(77, 11)
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	defer program.Close()
	for _, f := range []*os.File{user, program} {
		if c, r, err := TermSize(f.Fd()); err != nil || c != 77 || r != 11 {
			t.Errorf("%s: %d x %d, %v", f.Name(), c, r, err)
		}
	}
	// A shell on it knows its terminal and is interrupted by the key.
	cmd := exec.Command("sh", "-c", `trap 'echo interrupted; exit 3' INT; tty; while :; do sleep 0.1; done`)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	ControllingTerminal(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	in := bufio.NewReader(user)
	line, err := in.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != program.Name() {
		t.Errorf("tty: %q, %v; expected %s", line, err, program.Name())
	}
	if _, err := user.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	if line, err = in.ReadString('\n'); err != nil || strings.TrimSpace(line) != "^Cinterrupted" {
		t.Errorf("after the key: %q, %v", line, err)
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 {
		t.Errorf("exit status %d", code)
	}
}

// A line that was typed before the question is not its answer, and one without echo is not shown.
func TestLineInput(t *testing.T) {
	user, program, err := OpenTerminal(80, 24)
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	defer program.Close()
	shown := bufio.NewReader(user)
	if _, err := user.WriteString("early\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := shown.ReadString('\n'); err != nil || line != "early\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	restore, err := LineInput(program.Fd(), false)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(program)
	if _, err := user.WriteString("hidden\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := in.ReadString('\n'); err != nil || line != "hidden\n" {
		t.Errorf("the program reads %q, %v", line, err)
	}
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	if _, err := user.WriteString("open\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := shown.ReadString('n'); err != nil || line != "\r\nopen" {
		t.Errorf("the terminal shows %q, %v", line, err)
	}
	if _, err := LineInput(^uintptr(0)>>1, true); err == nil {
		t.Error("no terminal")
	}
}

func TestTermSizeOfAFile(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, _, err := TermSize(f.Fd()); !IsErrno(err, unix.ENOTTY) {
		t.Errorf("error %v, expected ENOTTY", err)
	}
}
