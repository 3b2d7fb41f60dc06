package flow

// ParseMatch reads the match of a rule; see ParseRule.
func ParseMatch(text string) (Match, error) {
	p := parser{text: text}
	var m Match
	err := p.run(func() {
		p.match(&m)
		p.end()
	})
	if err != nil {
		return Match{}, err
	}
	return m, nil
}
