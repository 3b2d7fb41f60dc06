package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
)

// OpenSSLTest is a stream over TLS 1.3 with AES-128-GCM on the loopback device, by a small C
// program with OpenSSL's SSL_write and SSL_read. Its receiver looks at every byte of the last
// message in each of its buffers.
type OpenSSLTest struct {
	Program    string // the path of the C program, which package testenv/peers compiles
	Size       uint64 // bytes of a message, a multiple of 8
	Messages   int    // that are timed; a tenth as many go before
	Slots      int    // buffers at each end, used in turn; 0: 2
	Chunk      int    // bytes of one SSL_write and SSL_read at most; 0: 1 MiB
	Congestion string // of the sender; "": the system's
	CPUs       CPUs
}

// OpenSSLResult is what the stream's sender says.
type OpenSSLResult struct {
	GBps     float64 `json:"gbps"` // 1e9 bytes per second, until the receiver had read the last byte
	Bytes    uint64  `json:"bytes"`
	Cipher   string  `json:"cipher"`
	Protocol string  `json:"protocol"`
}

// Args are the arguments of the client but for the port and the processor, for a report.
func (o OpenSSLTest) Args() []string {
	if o.Slots == 0 {
		o.Slots = 2
	}
	if o.Chunk == 0 {
		o.Chunk = 1 << 20
	}
	return []string{strconv.FormatUint(o.Size, 10), strconv.Itoa(o.Messages), strconv.Itoa(o.Slots),
		strconv.Itoa(o.Chunk), o.Congestion}
}

// OpenSSL runs the stream.
func OpenSSL(ctx context.Context, o OpenSSLTest) (r OpenSSLResult, err error) {
	out, err := pair{command: func(port int) (server, client []string) {
		at := strconv.Itoa(port)
		return []string{o.Program, "server", at, strconv.Itoa(o.CPUs.Server)},
			append([]string{o.Program, "client", at, strconv.Itoa(o.CPUs.Client)}, o.Args()...)
	}}.run(ctx)
	if err != nil {
		return r, err
	}
	return parseOpenSSL(out)
}

// parseOpenSSL reads what the stream's sender prints.
func parseOpenSSL(out []byte) (OpenSSLResult, error) {
	var r OpenSSLResult
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("peers: openssl-stream: %w: %w: %s", ErrOutput, err, tail(out))
	}
	if !(r.GBps > 0) || r.Bytes == 0 || r.Cipher != "TLS_AES_128_GCM_SHA256" || r.Protocol != "TLSv1.3" {
		return OpenSSLResult{}, fmt.Errorf("peers: openssl-stream: %w: %s", ErrOutput, tail(out))
	}
	return r, nil
}
