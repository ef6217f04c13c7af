package raftfsm

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

func pbMarshal(r *pb.InternalRaftRequest) ([]byte, error) { return proto.Marshal(r) }
