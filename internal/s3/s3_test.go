package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"go.uber.org/goleak"

	lab "github.com/penstock-io/penstock/internal/lab/testenv/s3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// within bounds waiting against hanging; no test depends on it.
func within(t testing.TB) context.Context {
	t.Helper()
	c, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return c
}

// start is a store that the environment names, with the bucket recordings, and a client of
// s3://recordings/a prefix.
func start(t *testing.T) (*lab.Store, *Client) {
	t.Helper()
	s := lab.Start(t)
	for name, value := range s.Env() {
		t.Setenv(name, value)
	}
	t.Setenv("HOME", t.TempDir())
	c, err := New("s3://recordings/über 100% + a?b/")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.core.MakeBucket(within(t), "recordings", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	return s, c
}

// file makes a file of random bytes.
func file(t testing.TB, path string, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(size)})
	_, _ = r.Read(b)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

// download is what the bucket has for a key.
func download(t testing.TB, c *Client, key string) []byte {
	t.Helper()
	o, err := c.core.Client.GetObject(within(t), c.bucket, key, minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	b, err := io.ReadAll(o)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return b
}

// unfinished is how many uploads with parts are not whole.
func unfinished(t testing.TB, c *Client) int {
	t.Helper()
	l, err := c.core.ListMultipartUploads(within(t), c.bucket, "", "", "", "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	return len(l.Uploads)
}

func keys(t testing.TB, c *Client) (out []string) {
	t.Helper()
	for o := range c.core.Client.ListObjects(within(t), c.bucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		out = append(out, o.Key)
	}
	return out
}

// What is uploaded is there with its bytes, once, under a key of its own.
func TestUpload(t *testing.T) {
	s, c := start(t)
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, size := range map[string]int{"empty": 0, "a part": partSize, "two parts #1 %41.pcapng": partSize + 1,
		"ten.pcapng": 2*partSize + 12345} {
		path := filepath.Join(dir, name)
		want := file(t, path, size)
		s.Break(func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPut && size == 0 && r.ContentLength != 0 {
				t.Errorf("an empty file has a body of %d bytes", r.ContentLength)
			}
			return false
		})
		if err := c.Upload(path); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := download(t, c, "über 100% + a?b/"+name); !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, expected %d", name, len(got), len(want))
		}
		var sent atomic.Int64
		s.Break(func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodHead {
				sent.Add(1)
			}
			return false
		})
		if err := c.Upload(path); err != nil || sent.Load() != 0 {
			t.Errorf("%s again: %v, %d requests besides HEAD", name, err, sent.Load())
		}
		s.Break(nil)
	}
	if n := unfinished(t, c); n != 0 {
		t.Errorf("%d unfinished uploads", n)
	}
	// Another file of the name goes beside it.
	path := filepath.Join(dir, "empty")
	want := file(t, path, 5)
	if err := c.Upload(path); err != nil {
		t.Fatal(err)
	}
	var beside []string
	for _, k := range keys(t, c) {
		if strings.HasPrefix(k, c.prefix+"empty-") {
			beside = append(beside, k)
		}
	}
	if len(beside) != 1 || !bytes.Equal(download(t, c, beside[0]), want) || len(download(t, c, c.prefix+"empty")) != 0 {
		t.Errorf("another file of a name: %q", beside)
	}
	if err := c.Upload(path); err != nil || len(keys(t, c)) != 5 {
		t.Errorf("again: %v, %q", err, keys(t, c))
	}
	if err := c.Upload(filepath.Join(dir, "gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{link, dir} {
		if err := c.Upload(other); err == nil || len(keys(t, c)) != 5 {
			t.Errorf("%s, which is no regular file: %v, %q", other, err, keys(t, c))
		}
	}
}

// The store fails, is busy, or the connection breaks in the midst of a part: the parts are sent
// again, and four at most are under way.
func TestFaults(t *testing.T) {
	s, c := start(t)
	path := filepath.Join(t.TempDir(), "a.pcapng")
	want := file(t, path, 5*partSize)
	var mu sync.Mutex
	seen := map[string]int{}
	var under, most int
	four := make(chan struct{})
	s.Break(func(w http.ResponseWriter, r *http.Request) bool {
		part := r.URL.Query().Get("partNumber")
		if part == "" {
			return false
		}
		mu.Lock()
		seen[part]++
		n := seen[part]
		under++
		most = max(most, under)
		last := n == 1 && len(seen) == inFlight
		mu.Unlock()
		if last { // the time of a request for another one that must not come
			keys(t, c)
			close(four)
		}
		<-four
		defer func() {
			mu.Lock()
			under--
			mu.Unlock()
		}()
		switch {
		case n > 1:
		case part == "1":
			lab.Answer(w, http.StatusInternalServerError, "InternalError")
			return true
		case part == "2":
			lab.Answer(w, http.StatusServiceUnavailable, "SlowDown")
			return true
		case part == "3":
			lab.Cut(w, r, partSize/2)
		}
		return false
	})
	if err := c.Upload(path); err != nil {
		t.Fatal(err)
	}
	if got := download(t, c, c.prefix+"a.pcapng"); !bytes.Equal(got, want) {
		t.Errorf("%d bytes, expected %d", len(got), len(want))
	}
	if n := unfinished(t, c); n != 0 || seen["1"] != 2 || seen["2"] != 2 || seen["3"] != 2 || most > inFlight {
		t.Errorf("%d unfinished; requests %v, %d at a time", n, seen, most)
	}
}

// A store that does not recover: there is no key and no part, and the next try begins from nothing.
func TestFailedUpload(t *testing.T) {
	s, c := start(t)
	path := filepath.Join(t.TempDir(), "a.pcapng")
	want := file(t, path, 3*partSize)
	for what, fault := range map[string]struct {
		breaks func(w http.ResponseWriter, r *http.Request) bool
		says   string
	}{
		"an error for good": {func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("partNumber") == "3" {
				lab.Answer(w, http.StatusForbidden, "AccessDenied")
				return true
			}
			return false
		}, "s3:AbortMultipartUpload"},
		"no room": {func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("partNumber") == "2" {
				lab.Answer(w, http.StatusBadRequest, "QuotaExceeded")
				return true
			}
			return false
		}, "QuotaExceeded"},
	} {
		s.Break(fault.breaks)
		err := c.Upload(path)
		if err == nil || !strings.Contains(err.Error(), fault.says) {
			t.Errorf("%s: %v", what, err)
		}
		s.Break(nil)
		if n, k := unfinished(t, c), keys(t, c); n != 0 || len(k) != 0 {
			t.Errorf("%s: %d unfinished uploads, keys %q", what, n, k)
		}
	}
	// What a killed run left goes, what is of another key stays.
	for _, key := range []string{c.prefix + "a.pcapng", c.prefix + "a.pcapng.other"} {
		if _, err := c.core.NewMultipartUpload(within(t), c.bucket, key, minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Upload(path); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(download(t, c, c.prefix+"a.pcapng"), want) || unfinished(t, c) != 1 {
		t.Errorf("%d unfinished uploads", unfinished(t, c))
	}
}

// An expired token is named, and the credentials are read again for the next try.
func TestExpiredToken(t *testing.T) {
	s, c := start(t)
	credentials := filepath.Join(t.TempDir(), "credentials")
	write := func(token string) {
		text := "[default]\naws_access_key_id = " + lab.AccessKey + "\naws_secret_access_key = " + lab.SecretKey +
			"\n" + token
		if err := os.WriteFile(credentials, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("aws_session_token = of-yesterday\n")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", credentials)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	c, err := New(c.String())
	if err != nil {
		t.Fatal(err)
	}
	s.Break(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("X-Amz-Security-Token") == "" {
			return false
		}
		lab.Answer(w, http.StatusBadRequest, "ExpiredToken")
		return true
	})
	path := filepath.Join(t.TempDir(), "a.pcapng")
	want := file(t, path, 100)
	for what, err := range map[string]error{"Check": c.Check(), "Upload": c.Upload(path)} {
		if err == nil || !strings.Contains(err.Error(), "the session token has expired: renew") {
			t.Errorf("%s: %v", what, err)
		} else if strings.Contains(err.Error(), "of-yesterday") || strings.Contains(err.Error(), lab.SecretKey) {
			t.Errorf("%s: a secret in %v", what, err)
		}
	}
	write("")
	if err := c.Upload(path); err != nil || !bytes.Equal(download(t, c, c.prefix+"a.pcapng"), want) {
		t.Error(err)
	}
}

// What does not mend itself is an error before there is a file, and says how to mend it.
func TestCheck(t *testing.T) {
	s, _ := start(t)
	check := func(place string) error {
		c, err := New(place)
		if err == nil {
			err = c.Check()
		}
		return err
	}
	says := func(what string, err error, text string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), lab.SecretKey) {
			t.Errorf("%s: %v, expected %q", what, err, text)
		}
	}
	says("no bucket", check("s3://elsewhere/a"), "make the bucket")
	s.Break(func(w http.ResponseWriter, _ *http.Request) bool {
		lab.Answer(w, http.StatusForbidden, "AccessDenied")
		return true
	})
	says("no right", check("s3://recordings"), "the credentials need s3:ListBucket")
	s.Break(func(w http.ResponseWriter, _ *http.Request) bool {
		lab.Answer(w, http.StatusServiceUnavailable, "SlowDown")
		return true
	})
	if err := check("s3://recordings"); err != nil {
		t.Errorf("a busy store: %v", err)
	}
	s.Break(nil)
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	says("a wrong secret", check("s3://recordings"), "correct AWS_ACCESS_KEY_ID")
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	says("no credentials", check("s3://recordings"), "no credentials: set AWS_ACCESS_KEY_ID")
	t.Setenv("AWS_ACCESS_KEY_ID", lab.AccessKey)
	t.Setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
	if err := check("s3://recordings"); err != nil {
		t.Errorf("a store that is down: %v", err)
	}
	for _, bad := range []string{"127.0.0.1:9000", "ftp://a", "https://user:" + lab.SecretKey + "@a", "http://a/b",
		"https://"} {
		t.Setenv("AWS_ENDPOINT_URL", bad)
		says(bad, check("s3://recordings"), "is no endpoint")
	}
}
