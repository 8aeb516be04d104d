//! Declaring structures in such a way that a C compiler can check them.
#![forbid(unsafe_code)]

/// What a C compiler must say of the header: an expression, and its value.
#[derive(Copy, Clone, Debug)]
pub struct Fact {
    /// In C.
    pub expression: &'static str,
    /// What it is here.
    pub value: u64,
}

/// Declares structures, and a table of what a C compiler must say of each. `[1]`: it is declared to
/// its end.
macro_rules! layout {
    ($facts:ident: $(
        $(#[$doc:meta])* struct $name:ident = $c:literal $([$whole:literal])? {
            $($(#[$fdoc:meta])* $field:ident: $ty:ty = $cfield:literal,)*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Copy, Clone, Debug)]
            #[repr(C)]
            #[allow(missing_docs)] // the manual has the fields; a comment has what we rely on
            pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
        )*

        const $facts: &[Fact] = &[$(
            $(Fact {
                expression: concat!("sizeof(struct ", $c, ")"),
                value: core::mem::size_of::<$name>() as u64 * $whole,
            },)?
            $(Fact {
                expression: concat!("offsetof(struct ", $c, ", ", $cfield, ")"),
                value: core::mem::offset_of!($name, $field) as u64,
            },)*
        )*];
    };
}

pub(super) use layout;
