package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Page asks Chromium for a page.
type Page struct {
	URL           string
	Width, Height int // of the window in pixels, for a screenshot; 0 is 1280 x 800
	// Settle is how long the page's own clock runs before the page counts as done, for pages that
	// set timers or fetch; the clock skips the time in which nothing happens. 0 is none: the page
	// is done when it is loaded.
	Settle time.Duration
	// Logf, when set, gets the reason when Chromium is started a second time.
	Logf func(format string, args ...any)
}

// chromiumTime bounds one run of the browser: starting takes a second on an idle machine.
const chromiumTime = 120 * time.Second

// ChromiumDOM renders a page in headless Chromium and returns its document after its scripts ran,
// as HTML.
func ChromiumDOM(ctx context.Context, page Page) (string, error) {
	var dom string
	err := page.render(ctx, func(dir string) []string {
		return []string{"--dump-dom"}
	}, func(_ string, out []byte) error {
		dom = string(out)
		if !strings.Contains(dom, "<html") {
			return fmt.Errorf("peers: chromium: %w: no document: %s", ErrOutput, tail(out))
		}
		return nil
	})
	return dom, err
}

// ChromiumShot renders a page in headless Chromium and returns a picture of it in PNG.
func ChromiumShot(ctx context.Context, page Page) ([]byte, error) {
	if page.Width == 0 || page.Height == 0 {
		page.Width, page.Height = 1280, 800
	}
	var picture []byte
	file := func(dir string) string { return filepath.Join(dir, "page.png") }
	err := page.render(ctx, func(dir string) []string {
		return []string{"--screenshot=" + file(dir), "--hide-scrollbars", "--force-device-scale-factor=1",
			"--window-size=" + strconv.Itoa(page.Width) + "," + strconv.Itoa(page.Height)}
	}, func(dir string, out []byte) error {
		var err error
		if picture, err = os.ReadFile(file(dir)); err != nil {
			return fmt.Errorf("peers: chromium made no picture: %w: %s", err, tail(out))
		}
		if !bytes.HasPrefix(picture, []byte("\x89PNG\r\n\x1a\n")) {
			return fmt.Errorf("peers: chromium: %w: its picture is no PNG: %.20q", ErrOutput, picture)
		}
		return nil
	})
	return picture, err
}

// render runs the browser, a second time if it fails the first time, and gives what it printed to
// use.
func (page Page) render(ctx context.Context, args func(dir string) []string,
	use func(dir string, out []byte) error) error {
	p, err := Get("chromium")
	if err != nil {
		return err
	}
	bin, err := p.tool("chromium")
	if err != nil {
		return err
	}
	err = page.once(ctx, bin, args, use)
	if err == nil || ctx.Err() != nil || errors.Is(err, errPage) {
		return err
	}
	if page.Logf != nil {
		page.Logf("chromium is started again: %v", err)
	}
	if again := page.once(ctx, bin, args, use); again != nil {
		return fmt.Errorf("%w; the first time: %w", again, err)
	}
	return nil
}

func (page Page) once(ctx context.Context, bin string, args func(dir string) []string,
	use func(dir string, out []byte) error) (err error) {
	h, err := newHome("chromium")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.remove()) }()
	// The pages are our own, so there is no sandbox: it does not work for root, nor in most
	// containers. It looks nothing up, updates and reports nothing outside this machine, and has
	// shared memory in the directory: /dev/shm is small in containers.
	all := []string{bin, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage",
		"--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-breakpad",
		"--disable-crash-reporter",
		"--no-proxy-server", "--user-data-dir=" + filepath.Join(h.dir, "profile")}
	if page.Settle > 0 {
		all = append(all, "--virtual-time-budget="+strconv.FormatInt(page.Settle.Milliseconds(), 10))
	}
	run, err := command{args: append(append(all, args(h.dir)...), page.URL),
		env: []string{"DBUS_SESSION_BUS_ADDRESS=disabled:"}, home: h, dir: h.dir,
		limit: chromiumTime}.start(ctx)
	if err != nil {
		return err
	}
	out, err := run.wait()
	if m := loadFailed.FindSubmatch(run.stderr.bytes()); m != nil {
		return fmt.Errorf("peers: chromium: %s: %w: %s", page.URL, errPage, m[1])
	}
	if err != nil {
		return err
	}
	return use(h.dir, out)
}

// errPage says that the browser works and the page does not: it does not help to start again.
var errPage = errors.New("the page cannot be shown")

var loadFailed = regexp.MustCompile(`Page load failed: (\S+)`)
