package input

import "strings"

// Nearest returns the word that was probably meant by w, or "". Case, hyphens and underscores do
// not count.
func Nearest(w string, words []string) string {
	const longest = 64
	if w == "" || len(w) > longest {
		return ""
	}
	plain := normal(w)
	best, least := "", 1+max(1, len(plain)/3)
	for _, x := range words {
		n := normal(x)
		if d := Distance(plain, n, least); d < least {
			best, least = x, d
		}
	}
	if best == "" && len(plain) >= 4 {
		// A word that lacks a part: "cores" for cpu_core is not near, but "buffers" in
		// "num_buffers" is found.
		for _, x := range words {
			if n := normal(x); len(n) >= 4 && (strings.Contains(n, plain) || strings.Contains(plain, n)) {
				return x
			}
		}
	}
	return best
}

func normal(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToLower(s))
}

// Distance is the number of characters to insert, delete, change or swap with their neighbour to
// make b of a (Damerau and Levenshtein, restricted: no part is changed twice), or limit if it is
// not less than that.
func Distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	prev2, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		least := i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
			least = min(least, row[j])
		}
		if least >= limit {
			return limit
		}
		prev2, prev, row = prev, row, prev2
	}
	return min(limit, prev[len(b)])
}
