// Package servicecidr tells whether a ServiceCIDR is in use, and lets it go when
// it is not.
//
// Reads ServiceCIDRs and IPAddresses; writes the finalizer and the condition Ready
// of ServiceCIDRs.
//
// Invariants: a ServiceCIDR goes only when every address that a Service has from
// it is in another one that stays, and not before the API servers have had ten
// seconds to see that it gives no addresses any more.
package servicecidr
