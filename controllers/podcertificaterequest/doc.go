// Package podcertificaterequest deletes PodCertificateRequests that are old: by
// then their pod has its certificate or has asked again.
//
// Reads and deletes PodCertificateRequests.
//
// Invariant: one younger than fifteen minutes is left alone.
package podcertificaterequest
