package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/peers"
)

// What the receivers of a file's benchmark get is in a capture file too, of several queues in one
// each.
func TestBenchStreamRecord(t *testing.T) {
	dir := t.TempDir()
	name, queue := filepath.Join(dir, "loop.yaml"), "{batch_size: 64, timeout: 1ms, memory_regions: [m]}"
	two := strings.Replace(loopFile, "rx: {queues: ["+queue+"]}",
		"rx: {queues: [{id: 0, "+queue[1:]+", {id: 1, "+queue[1:]+
			"], flows: [{match: {udp_dst: 2}, action: {type: queue, id: 1}}]}", 1)
	for text, files := range map[string][]string{loopFile: {"a.pcap"},
		strings.Replace(two, "bench_rx: {interface_name: loop}",
			"bench_rx: [{interface_name: loop, queue_id: 0}, {interface_name: loop, queue_id: 1}]", 1): {
			"a-loop-1.pcap", "a-loop-0.pcap"}} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, errOut, status := penstock(t, "bench", "stream", name, "--quick", "--quiet", "--packets", "500", "--set",
			"bench_tx[*].eth_dst_addr=02:00:00:00:00:01", "--record", filepath.Join(dir, "a.pcap"))
		if status != 0 || !regexp.MustCompile(`recorded 500 packets of loop/\d`).MatchString(out) {
			t.Fatalf("exit status %d: %s%s", status, out, errOut)
		}
		for i, file := range files {
			got, err := peers.Dissect(t.Context(),
				peers.Dissection{File: filepath.Join(dir, file), Fields: []string{"udp.dstport"}})
			if want := 500 * (1 - i); err != nil || len(got) != want || want > 0 && got[want-1].Fields[0] != "2" {
				t.Errorf("%s: %d packets, %v", file, len(got), err)
			}
			b, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil || string(b[:4]) != "\x4d\x3c\xb2\xa1" {
				t.Errorf("%s is no pcap file: %v", file, err)
			}
		}
	}
}
