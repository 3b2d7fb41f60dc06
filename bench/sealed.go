package bench

import (
	"context"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// withSecret makes drivers that can encrypt do so with a secret that both processes of a run have;
// nil leaves them as they are.
func withSecret(all []setup.Driver, secret []byte) []setup.Driver {
	if secret == nil {
		return all
	}
	out := make([]setup.Driver, len(all))
	for i, d := range all {
		out[i] = d
		if l, ok := d.(setup.ListenDriver); ok {
			out[i] = sealing{l, secret}
		}
	}
	return out
}

// sealing is a driver whose paths have a secret.
type sealing struct {
	setup.ListenDriver
	secret []byte
}

func (d sealing) Listen() (setup.Listener, error) {
	l, err := d.ListenDriver.Listen()
	if err != nil {
		return nil, err
	}
	return sealingListener{l, d.secret}, nil
}

func (d sealing) Dial(ctx context.Context, o setup.Offer, cfg setup.Config) (path.Path, error) {
	cfg.Secret = d.secret
	return d.ListenDriver.Dial(ctx, o, cfg)
}

type sealingListener struct {
	setup.Listener
	secret []byte
}

func (l sealingListener) Accept(ctx context.Context, t setup.Token, cfg setup.Config) (path.Path, error) {
	cfg.Secret = l.secret
	return l.Listener.Accept(ctx, t, cfg)
}
