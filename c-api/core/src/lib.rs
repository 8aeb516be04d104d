//! (placeholder)
#![no_std]
