//! The verbs rail: peers over InfiniBand or RoCE.

pub mod sys;
