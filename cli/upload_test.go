package cli

import (
	"crypto/rand"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/internal/lab/testenv/s3"
	"github.com/penstock-io/penstock/internal/sys"
)

const uploadFile = `penstock:
  memory_regions: [{name: a, kind: host, num_bufs: 1024, buf_size: 2KiB}]
  interfaces: [{name: in, address: "udp://127.0.0.1:0", rx: {queues: [{memory_regions: [a]}]}}]
  applications:
    - {name: keep, kind: sink, interface: in, record: DIR/a.pcapng, rotate: {size: 1GiB}, upload: "s3://recordings/of here"}
`

// A run that is killed while it uploads leaves no key. The next one uploads what waits, takes away
// what the first one left in the bucket, and does not touch what is not whole.
func TestRunUpload(t *testing.T) {
	dir, store := t.TempDir(), s3.Start(t)
	file := confFile(t, "upload.yaml", strings.ReplaceAll(uploadFile, "DIR", dir))
	var env []string
	for name, value := range store.Env() {
		t.Setenv(name, value)
		env = append(env, name+"="+value)
	}
	t.Setenv("HOME", dir)
	c, err := minio.NewCore(strings.TrimPrefix(store.URL, "http://"), &minio.Options{Region: "us-east-1",
		Creds: credentials.NewStaticV4(s3.AccessKey, s3.SecretKey, "")})
	if err != nil {
		t.Fatal(err)
	}
	// The bucket is looked for before the first packet, and before the first file.
	run(t, exitFailure, "make the bucket", "run", file)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := c.MakeBucket(limit(t), "recordings", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	unfinished := func() int {
		t.Helper()
		l, err := c.ListMultipartUploads(limit(t), "recordings", "", "", "", "", 100)
		if err != nil {
			t.Fatal(err)
		}
		return len(l.Uploads)
	}
	keys := func() (out []string) {
		t.Helper()
		for o := range c.Client.ListObjects(limit(t), "recordings", minio.ListObjectsOptions{Recursive: true}) {
			if o.Err != nil {
				t.Fatal(o.Err)
			}
			out = append(out, o.Key)
		}
		return out
	}
	want := make([]byte, 40<<20)
	_, _ = rand.Read(want)
	if err := os.WriteFile(filepath.Join(dir, "a-00001.pcapng"), want, 0o600); err != nil {
		t.Fatal(err)
	}
	under, held := make(chan struct{}, 3), make(chan struct{})
	store.Break(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("partNumber") == "2" {
			under <- struct{}{}
			<-held
		}
		return false
	})
	spec := program("run", file)
	spec.Env = append(spec.Env, env...)
	p := proc.Start(t, spec)
	select {
	case <-under:
	case <-limit(t).Done():
		t.Fatal("no part is uploaded")
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	store.Break(nil)
	close(held)
	if n, k := unfinished(), keys(); n != 1 || len(k) != 0 {
		t.Errorf("after SIGKILL: %d unfinished uploads, keys %q", n, k)
	}
	p = p.Restart()
	if _, err := p.NextLine(limit(t), regexp.MustCompile(`^running$`)); err != nil {
		t.Fatal(err)
	}
	p.Signal(sys.Interrupts()[0])
	if x, err := p.Wait(limit(t)); err != nil || x.Code != 0 {
		t.Fatal(x, err)
	}
	if !strings.Contains(p.Output(), "1 whole file; uploaded 2 files, 41.9 MB, 0 wait, 0 removed before\n") {
		t.Error(p.Output())
	}
	if n, k := unfinished(), strings.Join(keys(), " "); n != 0 ||
		k != "of here/a-00001.pcapng of here/a-00003.pcapng" {
		t.Errorf("%d unfinished uploads, keys %q", n, k)
	}
	to := filepath.Join(t.TempDir(), "back")
	if err := c.FGetObject(limit(t), "recordings", "of here/a-00001.pcapng", to, minio.GetObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to); err != nil || string(got) != string(want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	// A store that is away ends no run, and the status says that files wait.
	store.Break(func(w http.ResponseWriter, _ *http.Request) bool {
		s3.Answer(w, http.StatusServiceUnavailable, "SlowDown")
		return true
	})
	run(t, exitFailure, "files wait to be uploaded to s3://recordings/of here/", "run", file, "--duration", "10ms")
}
