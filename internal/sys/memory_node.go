package sys

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// NodeAvailable is an estimate of the bytes that can be allocated on one NUMA node without waking
// the OOM killer. The kernel publishes it only for the machine (MemAvailable); this follows its
// rule for one node: what is free beyond the watermarks, and half of the page cache and of the
// reclaimable slabs, or more where they are larger than a watermark.
func NodeAvailable(node int) (uint64, error) {
	meminfo, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/node/node%d/meminfo", node))
	if err != nil {
		return 0, err
	}
	zoneinfo, err := os.ReadFile("/proc/zoneinfo")
	if err != nil {
		return 0, err
	}
	return nodeAvailable(node, meminfo, zoneinfo)
}

func nodeAvailable(node int, meminfo, zoneinfo []byte) (uint64, error) {
	kb := map[string]uint64{}
	for s := bufio.NewScanner(bytes.NewReader(meminfo)); s.Scan(); {
		f := strings.Fields(s.Text()) // Node 1 MemFree: 18544 kB
		if len(f) == 5 && f[4] == "kB" {
			v, err := strconv.ParseUint(f[3], 10, 54)
			if err != nil {
				return 0, fmt.Errorf("meminfo of NUMA node %d: line %q: %w", node, s.Text(), err)
			}
			kb[strings.TrimSuffix(f[2], ":")] = v
		}
	}
	free, ok := kb["MemFree"]
	if !ok {
		return 0, fmt.Errorf("meminfo of NUMA node %d: no line MemFree", node)
	}
	var low, high uint64 // pages, over all zones of the node
	inside := false
	for s := bufio.NewScanner(bytes.NewReader(zoneinfo)); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) >= 4 && f[0] == "Node" { // Node 1, zone    DMA32
			inside = f[1] == strconv.Itoa(node)+","
		}
		if !inside || len(f) != 2 || f[0] != "low" && f[0] != "high" {
			continue // "high: 42" of a processor's list has a colon
		}
		v, err := strconv.ParseUint(f[1], 10, 54)
		if err != nil {
			return 0, fmt.Errorf("/proc/zoneinfo: line %q: %w", s.Text(), err)
		}
		if f[0] == "low" {
			low += v
		} else {
			high += v
		}
	}
	low, high = low*uint64(PageSize), high*uint64(PageSize)
	out := free << 10
	for _, v := range []uint64{kb["Active(file)"] + kb["Inactive(file)"], kb["SReclaimable"]} {
		v <<= 10
		out += v - min(v/2, low)
	}
	return out - min(out, high), nil
}
