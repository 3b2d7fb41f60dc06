package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"
)

// Etcd is a real etcd server of one member on the loopback address, with an empty store in a
// directory of its own.
type Etcd struct {
	URL  string // of its clients: gRPC, and JSON by HTTP
	p    *child
	home *home
	ctl  string // the path of etcdctl
}

// etcdLife bounds the life of a server that its caller does not stop.
const etcdLife = 10 * time.Minute

// StartEtcd starts a server and returns when it answers that it is healthy. It ends with ctx, and
// after ten minutes. The caller calls Stop.
func StartEtcd(ctx context.Context) (*Etcd, error) {
	p, err := Get("etcd")
	if err != nil {
		return nil, err
	}
	bin, err := p.tool("etcd")
	if err != nil {
		return nil, err
	}
	ctl, err := p.tool("etcdctl")
	if err != nil {
		return nil, err
	}
	// Another process may take one of the two ports before the server does: then the server ends,
	// and the next one gets others.
	for try := 1; ; try++ {
		e, err := startEtcd(ctx, bin, ctl)
		if err == nil {
			return e, nil
		}
		if try == 3 || !errors.Is(err, errNoPort) {
			return nil, err
		}
	}
}

func startEtcd(ctx context.Context, bin, ctl string) (_ *Etcd, err error) {
	h, err := newHome("etcd")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.remove())
		}
	}()
	client, err := freePort()
	if err != nil {
		return nil, err
	}
	member, err := freePort()
	if err != nil {
		return nil, err
	}
	e := &Etcd{URL: "http://127.0.0.1:" + strconv.Itoa(client), home: h, ctl: ctl}
	peer := "http://127.0.0.1:" + strconv.Itoa(member)
	e.p, err = command{
		args: []string{bin, "--name", "lab", "--data-dir", filepath.Join(h.dir, "data"), "--logger", "zap",
			"--listen-client-urls", e.URL, "--advertise-client-urls", e.URL,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "lab=" + peer},
		home: h, dir: h.dir, limit: etcdLife,
	}.start(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.p.waitListening(client); err != nil {
		e.p.stop()
		return nil, err
	}
	// It listens before it has elected itself.
	healthy, cancel := context.WithTimeout(e.p.ctx, runTime)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := e.Ctl(healthy, nil, "endpoint", "health")
		if err == nil {
			return e, nil
		}
		select {
		case <-tick.C:
		case <-e.p.done:
			return nil, e.p.failure(fmt.Errorf("%w: %v", errNoPort, e.p.err))
		case <-healthy.Done():
			e.p.stop()
			return nil, e.p.failure(fmt.Errorf("it is not healthy after %v: %w", runTime, err))
		}
	}
}

// Stop ends the server and removes its directory.
func (e *Etcd) Stop() error {
	e.p.stop()
	return e.home.remove()
}

// Put stores a value and returns the store's revision after that.
func (e *Etcd) Put(ctx context.Context, key string, value []byte) (revision int64, err error) {
	out, err := e.Ctl(ctx, bytes.NewReader(value), "put", "-w", "json", "--", key)
	if err != nil {
		return 0, err
	}
	a, err := parseEtcd(out)
	return a.Header.Revision, err
}

// Get reads a value; ok tells whether there is one.
func (e *Etcd) Get(ctx context.Context, key string) (value []byte, ok bool, err error) {
	out, err := e.Ctl(ctx, nil, "get", "-w", "json", "--", key)
	if err != nil {
		return nil, false, err
	}
	a, err := parseEtcd(out)
	if err != nil || len(a.KVs) == 0 {
		return nil, false, err
	}
	if string(a.KVs[0].Key) != key {
		return nil, false, fmt.Errorf("peers: etcdctl: %w: asked for %q, got %q", ErrOutput, key, a.KVs[0].Key)
	}
	return a.KVs[0].Value, true, nil
}

// etcdAnswer is what etcdctl prints with -w json.
type etcdAnswer struct {
	Header struct {
		Revision int64 `json:"revision"`
	} `json:"header"`
	KVs []struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	} `json:"kvs"`
}

func parseEtcd(out []byte) (a etcdAnswer, err error) {
	if err := json.Unmarshal(out, &a); err != nil {
		return a, fmt.Errorf("peers: etcdctl: %w: %w: %s", ErrOutput, err, tail(out))
	}
	if a.Header.Revision <= 0 {
		return a, fmt.Errorf("peers: etcdctl: %w: no revision in %s", ErrOutput, tail(out))
	}
	return a, nil
}

// Ctl runs etcdctl against the server with a standard input, which may be nil, and returns what it
// printed.
func (e *Etcd) Ctl(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	return command{
		args:  append([]string{e.ctl}, args...),
		env:   []string{"ETCDCTL_API=3", "ETCDCTL_ENDPOINTS=" + e.URL},
		home:  e.home,
		dir:   e.home.dir,
		stdin: stdin,
	}.run(ctx)
}
