package record

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// asked is an Uploader that asks the test.
type asked struct {
	check error
	paths chan string
	reply chan error
}

func newAsked() *asked { return &asked{nil, make(chan string), make(chan error)} }

func (a *asked) Check() error   { return a.check }
func (a *asked) String() string { return "elsewhere" }

func (a *asked) Upload(path string) error {
	a.paths <- path
	return <-a.reply
}

// next expects a file to be uploaded, and lets that end with err.
func (a *asked) next(t testing.TB, name string, err error) {
	t.Helper()
	select {
	case path := <-a.paths:
		if filepath.Base(path) != name {
			t.Errorf("%s is uploaded, expected %s", path, name)
		}
		a.reply <- err
	case <-limit(t).Done():
		t.Fatalf("%s is not uploaded", name)
	}
}

// closed closes a recorder, and waits for its uploads.
func closed(r *Recorder) error {
	return errors.Join(r.Close(context.Background()), r.Uploaded())
}

// touch makes a file of an earlier run.
func touch(t testing.TB, path string, size int, at time.Time) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, make([]byte, size), 0o600), os.Chtimes(path, at, at)); err != nil {
		t.Fatal(err)
	}
}

// All whole files go up, the oldest first and those of an earlier run too; recording does not wait
// for them.
func TestUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, up, long := t.TempDir(), newAsked(), time.Unix(1e9, 0)
		touch(t, filepath.Join(dir, "a-00002.raw"), 7, long)
		touch(t, filepath.Join(dir, "a-00001.raw"), 5, long.Add(time.Second))
		touch(t, filepath.Join(dir, "a-00003.raw.partial"), 9, long)
		touch(t, filepath.Join(dir, "b-00001.raw"), 9, long)
		r := open(t, Options{Name: filepath.Join(dir, "a.raw"), Format: Raw, Every: time.Hour, Upload: up})
		f := newFeed(t)
		for range 3 { // nobody answers yet
			r.Add(f.burst(frame(1, 100), 0, 1))
			r.Rotate()
		}
		synctest.Wait()
		if s := r.Stats(); s.Files != 3 || s.Packets != 3 || s.Uploads.Files != 0 || s.Uploads.Waiting != 5 {
			t.Errorf("%+v", s)
		}
		up.next(t, "a-00002.raw", nil)
		up.next(t, "a-00001.raw", nil)
		for _, name := range []string{"a-00004.raw", "a-00005.raw", "a-00006.raw"} {
			up.next(t, name, nil)
		}
		synctest.Wait()
		if s := r.Stats().Uploads; s != (Uploads{To: "elsewhere", Files: 5, Bytes: 7 + 5 + 300}) {
			t.Errorf("%+v", s)
		}
		go closed(r)
		up.next(t, "a-00007.raw", nil)
		if err := closed(r); err != nil {
			t.Error(err)
		}
		if s := r.Stats().Uploads; s.Files != 6 || s.Waiting != 0 || s.Failures != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A file that fails does not hold up others, stays, is tried again after a pause, and goes up in
// the next run.
func TestUploadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, up, bad := t.TempDir(), newAsked(), errors.New("no")
		o := Options{Name: filepath.Join(dir, "a.raw"), Format: Raw, Every: time.Hour, Upload: up}
		var err error
		touch(t, filepath.Join(dir, "a-00001.raw"), 5, time.Unix(1e9, 0))
		touch(t, filepath.Join(dir, "a-00002.raw"), 5, time.Unix(1e9+1, 0))
		r := open(t, o)
		up.next(t, "a-00001.raw", bad)
		synctest.Wait()
		if s := r.Stats().Uploads; s != (Uploads{To: "elsewhere", Waiting: 2, Failures: 1, Error: "no"}) {
			t.Errorf("%+v", s)
		}
		began := time.Now()
		up.next(t, "a-00002.raw", nil)
		up.next(t, "a-00001.raw", bad)
		up.next(t, "a-00001.raw", bad)
		if took := time.Since(began); took != 2*pause {
			t.Errorf("tried again after %v", took)
		}
		end := make(chan error)
		go func() { end <- closed(r) }()
		up.next(t, "a-00003.raw", nil)
		up.next(t, "a-00001.raw", bad)
		select {
		case <-up.paths: // once more, when the last file came before the end
			up.reply <- bad
			err = <-end
		case err = <-end:
		}
		if err == nil || !strings.Contains(err.Error(), "1 files wait to be uploaded to elsewhere") {
			t.Error(err)
		}
		r = open(t, o)
		up.next(t, "a-00001.raw", nil)
		up.next(t, "a-00002.raw", nil) // whether the place has it already only the place knows
		up.next(t, "a-00003.raw", nil)
		go closed(r)
		up.next(t, "a-00004.raw", nil)
		if err := closed(r); err != nil {
			t.Error(err)
		}
	})
}

// Keep removes first what is uploaded, and counts what it removes besides.
func TestUploadKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, up := t.TempDir(), newAsked()
		for i, name := range []string{"a-00001.raw", "a-00002.raw", "a-00003.raw", "a-00004.raw"} {
			touch(t, filepath.Join(dir, name), 100, time.Unix(1e9+int64(i), 0))
		}
		r := open(t, Options{Name: filepath.Join(dir, "a.raw"), Format: Raw, Every: time.Hour, Upload: up, Keep: 450})
		f := newFeed(t)
		end := func(removed uint64, left ...string) {
			t.Helper()
			r.Add(f.burst(frame(1, 100), 0, 1))
			r.Rotate()
			synctest.Wait()
			got := slices.DeleteFunc(listed(t, dir), func(s string) bool { return strings.HasSuffix(s, partial) })
			if s := r.Stats(); s.Uploads.Removed != removed || s.Err != nil || !slices.Equal(got, left) {
				t.Errorf("%+v, left %v, expected %v", s, got, left)
			}
		}
		up.next(t, "a-00001.raw", errors.New("no"))
		up.next(t, "a-00002.raw", nil)
		<-up.paths // the third one is under way
		end(0, "a-00001.raw", "a-00003.raw", "a-00004.raw", "a-00005.raw")
		end(1, "a-00003.raw", "a-00004.raw", "a-00005.raw", "a-00006.raw")
		up.reply <- nil
		up.next(t, "a-00004.raw", nil)
		up.next(t, "a-00005.raw", nil)
		up.next(t, "a-00006.raw", nil)
		end(1, "a-00004.raw", "a-00005.raw", "a-00006.raw", "a-00007.raw")
		up.next(t, "a-00007.raw", nil)
		go closed(r)
		up.next(t, "a-00008.raw", nil)
		if err := closed(r); err != nil {
			t.Error(err)
		}
	})
}

// A place that refuses is an error before there is a file.
func TestUploadRefused(t *testing.T) {
	dir, up := t.TempDir(), newAsked()
	up.check = errors.New("no bucket")
	if _, err := New(Options{Name: filepath.Join(dir, "a.raw"), Format: Raw, Upload: up}); !errors.Is(err, up.check) {
		t.Error(err)
	}
	if got := listed(t, dir); got != nil {
		t.Errorf("files: %v", got)
	}
}
