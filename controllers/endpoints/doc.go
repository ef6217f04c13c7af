// Package endpoints keeps the Endpoints object of every Service that selects
// pods, for clients that do not read EndpointSlices.
//
// Reads Services, pods and Endpoints; writes Endpoints. It leaves Endpoints of
// Services without a selector alone, and deletes those of deleted Services.
// More than 1000 addresses are cut and marked as over capacity.
package endpoints
