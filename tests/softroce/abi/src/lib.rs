//! Nothing: this package is its tests, which compare our declarations of
//! libibverbs with those of others. It is never part of the product.

#![forbid(unsafe_code)]
