package etcdapi

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/tmc/grpc-websocket-proxy/wsproxy"
	"go.etcd.io/etcd/api/v3/etcdserverpb/gw"
	v3electiongw "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb/gw"
	v3lockgw "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb/gw"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
)

// gatewayPrefix is where the JSON form of the API begins.
const gatewayPrefix = "/v3/"

// newGateway serves the API as JSON. Its calls come to the gRPC server over
// connections within this process, made by dial, so that nothing that is refused
// there passes here. The user of a call is that of its Authorization header: a
// client certificate names nobody here, as with etcd. A stream of requests, as a watch
// is, may also come over a websocket.
func newGateway(dial func() net.Conn, log *slog.Logger) (http.Handler, *grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///this-process",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return dial(), nil }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("connect the JSON gateway: %w", err)
	}
	mux := runtime.NewServeMux(runtime.WithMarshalerOption(runtime.MIMEWildcard, &runtime.HTTPBodyMarshaler{
		Marshaler: &runtime.JSONPb{
			MarshalOptions:   protojson.MarshalOptions{UseProtoNames: true},
			UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: true},
		},
	}))
	for _, register := range []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{
		gw.RegisterKVHandler, gw.RegisterWatchHandler, gw.RegisterLeaseHandler, gw.RegisterClusterHandler,
		gw.RegisterMaintenanceHandler, gw.RegisterAuthHandler, v3lockgw.RegisterLockHandler, v3electiongw.RegisterElectionHandler,
	} {
		if err := register(context.Background(), mux, conn); err != nil {
			conn.Close()
			return nil, nil, fmt.Errorf("set the JSON gateway up: %w", err)
		}
	}
	return wsproxy.WebsocketProxy(mux, wsproxy.WithRequestMutator(func(_, inner *http.Request) *http.Request {
		inner.Method = http.MethodPost // an upgrade is a GET, and what it asks for is not
		return inner
	}), wsproxy.WithMaxRespBodyBufferSize(math.MaxInt32), wsproxy.WithLogger(websocketLog{log})), conn, nil
}

// websocketLog is where the proxy of websockets says what went wrong with one.
type websocketLog struct{ log *slog.Logger }

func (l websocketLog) Warnln(what ...any)  { l.Debugln(what...) } // the client's affair, mostly
func (l websocketLog) Debugln(what ...any) { l.log.Debug("websocket", "message", fmt.Sprint(what...)) }
