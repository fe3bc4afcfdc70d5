"""History: file contents before each change, and how a session is rewound to them."""
