// Package clusterroleaggregation fills ClusterRoles that have an aggregation
// rule (admin, edit, view) with the rules of the ClusterRoles it selects.
//
// Reads and writes ClusterRoles.
package clusterroleaggregation
