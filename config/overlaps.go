package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/packet/flow"
)

// ruleNumber is how package flow names other rules of its set.
var ruleNumber = regexp.MustCompile(`rule (\d+)(?: "(?:[^"\\]|\\.)*")?|rules ((?:\d+, )+\d+)`)

// fileWords writes the words of package flow as files have them.
var fileWords = strings.NewReplacer("vlan-pop", "vlan_pop", "vlan-push", "vlan_push", "queue or rss", "queue",
	"queue, rss", "queue", "queues: use rss for several", "queues", "rss", "queue with ids",
	"inner-vlan", "inner_vlan", "eth type", "eth_type", "eth src", "eth_src", "eth dst", "eth_dst", "ip src", "ip_src",
	"ip dst", "ip_dst", "ip len", "ip_len", "udp src", "udp_src", "udp dst", "udp_dst", "tcp src", "tcp_src", "tcp dst",
	"tcp_dst", "ecpri type", "msg_type", "udp-src", "outer_udp_src",
	"udp-dst", "outer_udp_dst", "outer eth-src", "outer_eth_src", "outer eth-dst", "outer_eth_dst",
	"outer ip-src and ip-dst", "outer_ip_src and outer_ip_dst", "flow-id", "flow_id",
	"gre proto", "gre_protocol", "vlan id", "vlan_id", "tpid", "ethertype", "decap uses", "tunnel_decap uses",
	"use encap or decap", "use tunnel_encap or tunnel_decap")

// RuleWords writes what package flow says of a rule with the keys and words of a file: vlan_pop,
// ip_src.
func RuleWords(text string) string { return fileWords.Replace(text) }

// problems turns what flow says of rules into diagnostics. What several flows have in common with
// one other is one diagnostic.
func (d *decoder) problems(all flow.Problems, where func(i int) string, flows []*Flow) {
	never := map[int]bool{}
	hidden, meets := map[int][]int{}, map[int][]int{} // by the other flow
	for _, p := range all {
		if p.Kind == flow.Unreachable {
			never[p.Rule] = true
			hidden[p.Other] = append(hidden[p.Other], p.Rule)
		}
	}
	for _, p := range all {
		if p.Kind == flow.Ambiguous && !never[p.Rule] {
			meets[p.Other] = append(meets[p.Other], p.Rule)
		}
	}
	called := func(i int) string { return shown(flows[i].Name) }
	names := func(of []int) string {
		var l []string
		for _, i := range of {
			l = append(l, called(i))
		}
		if more := len(l) - 8; more > 0 {
			l = append(l[:8], fmt.Sprintf("and %d more", more))
		}
		return strings.Join(l, ", ")
	}
	for _, p := range all {
		s := Error
		if p.Kind.Warning() {
			s = Warning
		}
		switch p.Kind {
		case flow.Duplicate: // names and ids are looked at here
			continue
		case flow.Unreachable:
			if l := hidden[p.Other]; len(l) > 1 {
				if p.Rule == l[0] {
					d.also(d.report(s, CodeConflict, where(p.Other),
						fmt.Sprintf("flow %s takes every packet of %d flows behind it, which never get one: %s",
							called(p.Other), len(l), names(l)), "",
						"put it behind them, or give it a lower priority"), where(p.Rule), "the first of them is here")
				}
				continue
			}
		case flow.Ambiguous:
			if never[p.Rule] {
				continue // it was said that the rule is for nothing
			}
			if l := meets[p.Other]; len(l) > 1 {
				if p.Rule == l[0] {
					d.also(d.report(s, CodeConflict, where(p.Rule),
						fmt.Sprintf("%d flows treat packets of flow %s differently, at the "+
							"same priority: %s", len(l), called(p.Other), names(l)), "",
						"the first in the list wins; give each a priority"), where(p.Other),
						"the other flow is here")
				}
				continue
			}
		}
		path := where(p.Rule)
		if n := 0; strings.HasPrefix(p.Field, "action ") {
			if _, err := fmt.Sscanf(p.Field, "action %d", &n); err == nil && n <= len(flows[p.Rule].Actions) {
				path = join(path, item("actions", n-1))
			}
		} else {
			path = join(path, "match")
		}
		text := ruleNumber.ReplaceAllStringFunc(p.Text, func(said string) string {
			var of []int
			for number := range strings.SplitSeq(ruleNumber.ReplaceAllString(said, "$1$2"), ", ") {
				if n, err := strconv.Atoi(number); err == nil && n < len(flows) {
					of = append(of, n)
				}
			}
			if len(of) == 1 {
				return "flow " + names(of)
			}
			return "the flows " + names(of)
		})
		i := d.report(s, CodeConflict, path, fmt.Sprintf("flow %s: %s: %s", called(p.Rule), RuleWords(p.Field),
			RuleWords(text)), "", "")
		if p.Other >= 0 {
			d.also(i, where(p.Other), "the other flow is here")
		}
	}
}
