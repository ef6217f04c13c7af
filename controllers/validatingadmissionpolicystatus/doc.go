// Package validatingadmissionpolicystatus checks the types of the expressions of
// ValidatingAdmissionPolicies and writes what it finds into their status.
//
// Reads ValidatingAdmissionPolicies, writes their status. The checking itself is
// given to it, for it needs the schemas of the API server.
//
// Invariant: each generation of a policy is checked once.
package validatingadmissionpolicystatus
